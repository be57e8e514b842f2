"""Adapters inside a model: put beside layers, known again, named in `state_dict`, merged and taken out.

What peft leaves to its callers is done here: shared layers get one adapter everywhere, adapters follow the dtype of the
layer beside them, keys of the plain model stay, and torch's fast paths that would read past an adapter are switched off.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import nn

from snugfit.errors import InputError
from snugfit.library_imports import importing, needed
from snugfit.techniques.adapter.experts import add_beside, expert_stacks
from snugfit.techniques.packed_weight import PackedWeight

NAME = "default"
"""Name of the adapter inside peft's layers; files do not carry it."""
_RECORD = "_snugfit_adapter"
_ADAPTERS_OWN = re.compile(r"(base_layer\.)*lora_")
"""Prefix of the names of an inner adapter's tensors, in experts with several nested adapters."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AdapterRecord:
    """What was done to a model that carries adapters; the model keeps it."""

    settings: dict[str, Any]
    """Recipe field -> value, of the fields that the adapters depend on, as far as they are known (files do not say all)."""
    classifier: tuple[str, ...]
    """Names of the modules of the head that are trained as they are."""
    trained: tuple[str, ...]
    """Parameters that were trained before."""
    fast_paths: dict[str, int]
    """`nn.TransformerEncoderLayer` -> the setting of its fast path, which reads weights past the adapters."""


def peft_library() -> Any:
    """Returns peft; `InputError` where it is not installed."""
    return needed("an adapter needs", "peft", install="snugfit[text]")


@functools.cache
def load_peft() -> None:
    """Loads peft and the libraries it loads only at the first adapter (bitsandbytes and torchao, where installed).

    A simulation calls this before it records: libraries must not be loaded while tensors have no values.
    """
    peft = peft_library()
    config = peft.LoraConfig(r=1, target_modules=["0"], use_dora=True)
    with torch.random.fork_rng(devices=()), importing():
        peft.inject_adapter_in_model(config, nn.Sequential(nn.Linear(1, 1)))


def adapter_record(model: nn.Module) -> AdapterRecord | None:
    """Returns what was done to a model that carries adapters of ours, else None."""
    record = vars(model).get(_RECORD)
    return record if isinstance(record, AdapterRecord) else None


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """Returns peft's layers, those with an adapter beside them, by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


def add_adapters(
    model: nn.Module, config: Any, *, classifier: tuple[str, ...], settings: dict[str, Any], seed: int
) -> AdapterRecord:
    """Puts adapters into a model, in place, and freezes everything else but the head of a classifier.

    `classifier`: names of the modules that are trained as they are.
    """
    peft = peft_library()
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    endings = tuple(f".{name}" for name in config.target_parameters or ())
    stacks = [name for name in expert_stacks(model) if f".{name}".endswith(endings)]
    with torch.random.fork_rng(devices=()), importing():  # adapters are drawn on the host, whatever the device
        torch.manual_seed(seed)
        model.requires_grad_(False)
        if config.target_modules:
            linear = copy.copy(config)
            linear.target_parameters = None
            with _device_known(model), _of_no_kind(model):
                peft.inject_adapter_in_model(linear, model, adapter_name=NAME)
        for name in stacks:
            add_beside(model, name, config, NAME)
    vars(model)["peft_config"] = {NAME: config}
    layers = adapted_layers(model)
    # Nested adapters have one base layer. The outermost comes first among the modules, so last here, and stays.
    outermost = {layer.get_base_layer(): layer for layer in reversed(layers.values())}
    _replace_everywhere(model, outermost)
    for layer in layers.values():
        _follow_dtype(layer)
        layer.register_state_dict_post_hook(_to_plain_keys)
        layer.register_load_state_dict_pre_hook(_from_plain_keys)
        if _is_packed(layer):
            layer.merge = refuse_to_merge
    head = {id(weight) for name in classifier for weight in model.get_submodule(name).parameters()}
    for weight in trained.values():
        if id(weight) in head:
            weight.requires_grad_(True)
    record = AdapterRecord(
        settings=settings, classifier=classifier, trained=tuple(trained), fast_paths=_without_fast_paths(model)
    )
    setattr(model, _RECORD, record)
    return record


def merge(model: nn.Module) -> None:
    """Adds the adapters to their weights and takes them out of the model; `InputError` if the weights are quantised.

    `model`: a model with adapters; changed in place. What was trained before the adapters came is trained again.
    """
    layers = adapted_layers(model)
    if not layers:
        raise InputError("the model has no adapters to merge.")
    if any(map(_is_packed, layers.values())):
        refuse_to_merge()
    for name, layer in layers.items():
        try:
            layer.merge(safe_merge=True)
        except ValueError as error:
            raise InputError(f"the adapter of {name!r} cannot be merged: {error}.") from error
    _replace_everywhere(model, {layer: layer.get_base_layer() for layer in layers.values()})
    vars(model).pop("peft_config", None)
    record = adapter_record(model)
    if record is not None:
        delattr(model, _RECORD)
        for name, weight in model.named_parameters():
            weight.requires_grad_(name in record.trained)
        for name, setting in record.fast_paths.items():
            model.get_submodule(name).activation_relu_or_gelu = setting  # type: ignore[assignment]


def refuse_to_merge(*_: object, **__: object) -> NoReturn:
    """Replaces peft's `merge` where weights are quantised and rounding would silently drop what was learned; raises."""
    raise InputError(
        "adapters cannot be merged into quantised weights: rounding the sum to so few bits would lose most of what was "
        "learned. Save the adapters (snugfit.save_adapter), load them onto the plain model (snugfit.load_adapter) and merge "
        "there."
    )


@contextlib.contextmanager
def _device_known(model: nn.Module) -> Iterator[None]:
    """Tells peft the device of a model whose weights are all packed: it asks the first parameter, and there is none."""
    if next(model.parameters(), None) is not None:
        yield
        return
    model.hf_device_map = {"": next(model.buffers()).device}  # type: ignore[assignment]
    try:
        yield
    finally:
        del model.hf_device_map


@contextlib.contextmanager
def _of_no_kind(model: nn.Module) -> Iterator[None]:
    """Keeps peft from going by a model's kind: of some mixtures it takes `down_proj` of any layer for the experts'."""
    held = vars(model).pop("config", None)
    try:
        yield
    finally:
        if held is not None:
            model.config = held


def _replace_everywhere(model: nn.Module, replacements: dict[nn.Module, nn.Module]) -> None:
    """Puts modules in the place of others wherever these are registered; peft replaces a shared layer only once."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in replacements and not hasattr(parent, "lora_A"):
                parent._modules[name] = replacements[child]


def _held(layer: Any) -> Any:
    """What an adapter stands beside: a layer, or a stack of experts' matrices."""
    return layer.get_param() if hasattr(layer, "parameter_name") else layer.get_base_layer()


def _is_packed(layer: Any) -> bool:
    return isinstance(_held(layer), PackedWeight)


def _follow_dtype(layer: Any) -> None:
    """Gives an adapter the dtype of the layer beside it; peft holds 16-bit ones in fp32."""
    held = _held(layer)
    dtype = held.dtype if isinstance(held, PackedWeight | nn.Parameter) else held.weight.dtype
    for parts in (getattr(layer, name) for name in layer.adapter_layer_names):
        if isinstance(parts, nn.ModuleDict) and NAME in parts:
            parts[NAME].to(dtype)


def _without_fast_paths(model: nn.Module) -> dict[str, int]:
    """Switches off torch's inference kernel of `nn.TransformerEncoderLayer`, which reads weights past the adapters."""
    found: dict[str, int] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoderLayer) and any(True for _ in adapted_layers(module)):
            found[name] = module.activation_relu_or_gelu
            module.activation_relu_or_gelu = 0
    return found


def _to_plain_keys(layer: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Names the frozen layer's tensors as the plain model does, in front of the adapter's."""
    inner = prefix + "base_layer."
    own = [(key, state.pop(key)) for key in [key for key in state if key.startswith(prefix)]]
    plain = {key for key, _ in own if key.startswith(inner) and not _ADAPTERS_OWN.match(key.removeprefix(inner))}
    state.update((prefix + key.removeprefix(inner), value) for key, value in own if key in plain)
    state.update((key, value) for key, value in own if key not in plain)


def _from_plain_keys(layer: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Gives tensors of the plain model to the frozen layer; names of peft's own pass as they are."""
    for key in [key for key in state if key.startswith(prefix)]:
        tail = key.removeprefix(prefix)
        if tail.split(".")[0] not in layer._modules:
            state[f"{prefix}base_layer.{tail}"] = state.pop(key)
