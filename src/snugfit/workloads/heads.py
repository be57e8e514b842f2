"""Heads of models for another number of classes: found, and replaced by fresh ones."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch

from snugfit.errors import InputError, note

LAYERS_WITH_CLASSES = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


def heads_of_other_classes(
    model: torch.nn.Module, resized: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, int]]:
    """Returns head name -> (classes in the file, in the model), if that explains all shapes that differ.

    Heads are Linear or Conv layers whose outputs are as many as the model's classes and, in the file, as many as the
    file's; the model's last such layer must be one of them. Several are auxiliary heads.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LAYERS_WITH_CLASSES)}
    heads: dict[str, tuple[int, int]] = {}
    for full_name in resized:
        name, _, kind = full_name.rpartition(".")
        if name not in layers or full_name not in shapes:
            return {}
        own, other = tuple(getattr(layers[name], kind).shape), shapes[full_name]
        if len(own) != len(other) or own[1:] != other[1:]:
            return {}
        heads[name] = (other[0], own[0])
    same_classes = len(set(heads.values())) == 1
    return heads if same_classes and list(layers)[-1] in heads else {}


def replace_heads(model: torch.nn.Module, old_classes: int, classes: int, *, origin: str) -> None:
    """Puts fresh layers in place of heads with `old_classes` outputs; `origin` names the weights in messages."""
    heads = {}
    # The model's own head is its last layer; an auxiliary head is the last layer of another child of the model.
    for part_name, part in model.named_children():
        layers = [(name, module) for name, module in part.named_modules() if isinstance(module, LAYERS_WITH_CLASSES)]
        if layers and outputs_of(layers[-1][1]) == old_classes:
            name = ".".join(piece for piece in (part_name, layers[-1][0]) if piece)
            heads[name] = layers[-1][1]
    if not heads:
        raise InputError(
            f"the head of this model was not found: no last layer has the {old_classes} outputs of {origin}. "
            f"Leave num_classes at {old_classes}, or give a model function that replaces the head itself."
        )
    for name, head in heads.items():
        model.set_submodule(name, _like(head, classes))
    if getattr(model, "num_classes", None) == old_classes:
        model.num_classes = classes  # type: ignore[assignment]
    note(head_note(dict.fromkeys(heads, (old_classes, classes)), origin))


def outputs_of(layer: torch.nn.Module) -> int:
    """Returns how many outputs a layer of `LAYERS_WITH_CLASSES` has."""
    return int(getattr(layer, "out_features", 0) or getattr(layer, "out_channels", 0))


def _like(layer: torch.nn.Module, outputs: int) -> torch.nn.Module:
    """A fresh layer of the same kind and settings, with another number of outputs."""
    fresh = copy.deepcopy(layer)
    for name in ("out_features", "out_channels"):
        if hasattr(fresh, name):
            setattr(fresh, name, outputs)
    for name, parameter in list(fresh.named_parameters(recurse=False)):
        setattr(fresh, name, torch.nn.Parameter(parameter.new_empty(outputs, *parameter.shape[1:])))
    assert isinstance(fresh, LAYERS_WITH_CLASSES)
    fresh.reset_parameters()
    return fresh


def head_note(heads: Mapping[str, tuple[int, int]], origin: str) -> str:
    """Returns what is said of fresh heads; `origin` names the weights."""
    old, new = next(iter(heads.values()))
    return f"head {', '.join(heads)}: fresh values for {new} classes; {origin} has {old}."
