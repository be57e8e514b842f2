"""Pretrained weights put into a model, and freezing by name pattern.

A file is matched against the model by names and shapes before a single value is copied, so a model is never half-loaded.
"""

from __future__ import annotations

import fnmatch
import functools
import math
from collections.abc import Mapping, Sequence

import torch

from snugfit.errors import InputError, listed, note
from snugfit.techniques.adapter.layers import adapter_record
from snugfit.techniques.init.late import await_values
from snugfit.workloads.heads import head_note, heads_of_other_classes
from snugfit.workloads.hf_conversion import Source
from snugfit.workloads.stored_weights import StoredShards, StoredWeights


def await_weights(
    model: torch.nn.Module, stored: StoredWeights | StoredShards, *, without_values: bool = False
) -> bool:
    """Marks parameters on meta as awaited from a file, and reads buffers.

    `without_values`: whether memory of their size and dtype stands for them, and buffers are left alone.
    Returns whether the file has exactly the tensors of the model; if not, nothing is marked.
    """
    state = model.state_dict(keep_vars=True)
    known = {id(value): name for name, value in state.items() if name in stored.shapes}
    found = {name: name if name in stored.shapes else known.get(id(value), "") for name, value in state.items()}
    if set(stored.shapes) - set(state) or any(
        stored.shapes.get(found[name]) != tuple(value.shape) for name, value in state.items()
    ):
        return False
    for name, value in state.items():
        source = found[name]
        if isinstance(value, torch.nn.Parameter):
            shape, dtype = stored.shapes[source], stored.dtypes[source]
            read = functools.partial(stored.copied, source)
            if without_values:
                read = functools.partial(torch.empty, shape, dtype=dtype, device="cpu")
            await_values(value, read, stored=True)
        elif not without_values:
            value.copy_(stored.copied(source))
    return True


def await_converted(
    model: torch.nn.Module, stored: StoredShards, sources: Mapping[str, Source], *, without_values: bool = False
) -> bool:
    """As `await_weights`, for a file whose tensors have other names or cuts than the model's.

    `sources`: what each tensor of the model's state is made of; of tied ones one may be missing.
    Returns whether the file has every tensor of the model, in its size; if not, nothing is marked.
    """
    state = model.state_dict(keep_vars=True)
    known = {id(value): sources[name] for name, value in state.items() if name in sources}
    sizes = {name: math.prod(shape) for name, shape in stored.shapes.items()}
    if any(
        id(value) not in known or sum(sizes[name] for name in known[id(value)].names) != value.numel()
        for value in state.values()
    ):
        return False

    def empty(name: str) -> torch.Tensor:
        return torch.empty(stored.shapes[name], dtype=stored.dtypes[name], device="cpu")

    for value in state.values():
        source = known[id(value)]
        if isinstance(value, torch.nn.Parameter):
            await_values(value, functools.partial(source.read, empty if without_values else stored.copied), stored=True)
        elif not without_values:
            value.copy_(source.read(stored.copied))
    return True


def match_weights(model: torch.nn.Module, stored: StoredWeights) -> dict[str, str | None]:
    """Says where each tensor of a model comes from; `InputError` lists what does not fit.

    Returns state-dict name of the model -> name in the file (another one for a tied tensor that is stored once), or
    None for a head that is kept fresh because the file has another number of classes.
    """
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)}
    stored_name_of = {id(value): name for name, value in state.items() if name in stored.shapes}
    found = {name: name if name in stored.shapes else stored_name_of.get(id(value)) for name, value in state.items()}
    missing = [name for name, source in found.items() if source is None]
    unexpected = [name for name in stored.shapes if name not in state]
    resized = [name for name, source in found.items() if source and stored.shapes[source] != tuple(state[name].shape)]
    heads = heads_of_other_classes(model, resized, stored.shapes)
    if not missing and not unexpected and (heads or not resized):
        if heads:
            note(head_note(heads, str(stored.path)))
        return {name: None if name in resized else source for name, source in found.items()}
    parts = []
    if missing:
        parts.append(f"{len(missing)} missing in the file ({listed(missing)})")
    if unexpected:
        parts.append(f"{len(unexpected)} unknown to the model ({listed(unexpected)})")
    if resized:
        shapes = [f"{name}: file {list(stored.shapes[name])}, model {list(state[name].shape)}" for name in resized]
        parts.append(f"{len(resized)} of another shape ({listed(shapes)})")
    raise InputError(
        f"weights file {str(stored.path)!r} does not fit the model: {'; '.join(parts)}. "
        "Give the file of this architecture, or the model arguments it was trained with."
    )


@torch.no_grad()
def load_weights(model: torch.nn.Module, stored: StoredWeights) -> list[str]:
    """Copies a file into a model one tensor at a time, rounded to its dtype; returns names it had nothing for."""
    found = match_weights(model, stored)
    for name, value in model.state_dict(keep_vars=True).items():
        source = found.get(name)
        if source is not None:
            value.copy_(stored.read(source))
    return [name for name, source in found.items() if source is None]


@torch.no_grad()
def map_weights(model: torch.nn.Module, stored: StoredWeights, dtype: torch.dtype | None) -> list[str]:
    """Gives a model without memory the tensors of a file, mapped where the dtype is right; returns names not found.

    `dtype`: dtype of floating-point tensors; None: the model's own.
    """
    found = match_weights(model, stored)
    mapped: dict[torch.Tensor, torch.Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        source = found.get(name)
        if source is None:
            continue
        if not value.is_meta:
            value.copy_(stored.read(source))
            continue
        final = dtype if dtype is not None and value.is_floating_point() else value.dtype
        if value not in mapped:
            read = stored.read(source).to(final)
            own = isinstance(value, torch.nn.Parameter)
            mapped[value] = torch.nn.Parameter(read, value.requires_grad) if own else read
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            table.update({key: mapped[tensor] for key, tensor in table.items() if tensor in mapped})  # type: ignore[misc]
    return [name for name, source in found.items() if source is None]


def freeze_parameters(model: torch.nn.Module, patterns: Sequence[str]) -> list[str]:
    """Freezes parameters by shell-style patterns (`encoder.*`) and returns their names; adapters have frozen all already."""
    if adapter_record(model) is not None:
        return []
    parameters = dict(model.named_parameters())
    frozen: list[str] = []
    for pattern in patterns:
        matched = fnmatch.filter(parameters, pattern)
        if not matched:
            tops = sorted({f"{name.split('.')[0]}.*" if "." in name else name for name in parameters})
            raise InputError(
                f"freeze pattern {pattern!r} matches no parameter. Names look like {listed(list(parameters))}; "
                f"patterns that match: {listed(tops, 12)}."
            )
        frozen.extend(name for name in matched if name not in frozen)
    if patterns and len(frozen) == len(parameters):
        raise InputError(
            f"freeze {','.join(patterns)!r} matches all {len(parameters)} parameters, so nothing is left to train. "
            "Leave some out, for example the head."
        )
    for name in frozen:
        parameters[name].requires_grad_(False)
    return frozen
