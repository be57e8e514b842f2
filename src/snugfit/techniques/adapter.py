"""Adapters: small matrices beside frozen linear layers are trained, and the layers themselves are not.

LoRA adds `B A x * alpha / rank` to what a frozen layer returns, with `A` [rank, inputs] and `B` [outputs, rank]; `B` starts
at zero, so training starts from the model as it was. *rslora* divides by the root of the rank, which keeps high ranks from
learning ever more slowly. *dora* learns the length of each row of the weights apart from its direction; it computes the
whole weight of a layer in each forward pass, so it is slower and has a layer's weight as a temporary.

Saves gradients and optimizer state of all frozen weights (12 bytes a parameter with AdamW in fp32), and the inputs that
frozen layers would have kept for their own gradients. Costs the adapters' products, a few percent of a step, and their
small activations. What autograd needs to get through the model stays, so activations fall by less than one would think:
checkpointing and `quantize` go well with it.

`all-linear` means every linear layer but the head; name patterns choose among them. A language model's head is frozen, and
gets an adapter with `adapter_head` (not where it shares its weight with the embedding: merged, the adapter would change
both). A classifier's head is new for the task, so it is trained as it is. How heads are found is said in
`linear_layers.py`. Layers inside `nn.MultiheadAttention` take no adapter, because that module never calls them.

Adapters have the dtype of the weights they stand beside: fp32 under `fp32` and the mixed precisions, 16 bits under
`bf16-true` and `16-true` (as in torchtune; `stochastic_rounding` keeps their small updates). Their first values come from
the workload's seed and leave torch's own random state alone.

Keys of `state_dict` are those of the plain model, and beside them the adapters' own, as peft names them. A model that is
prepared again keeps its adapters when the settings are the same; others are refused, because what was learned would be lost.

Wrong when: the task is far from what the model knows (full fine-tuning learns more), or the model is small. The learning
rate is usually ten times that of full fine-tuning. Fidelity: different. Known limitation: a model that reads a layer's
weight instead of calling the layer gets nothing from an adapter beside it.

Source: Hu et al., LoRA, 2021 (arXiv:2106.09685); Kalajdzievski, rsLoRA, 2023 (arXiv:2312.03732); Liu et al., DoRA, 2024
(arXiv:2402.09353); peft, `inject_adapter_in_model`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import logging
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import nn

from snugfit.errors import InputError, did_you_mean
from snugfit.recipe import Recipe
from snugfit.techniques.base import ModelTechnique
from snugfit.techniques.frozen_linear import FrozenLinear
from snugfit.techniques.linear_layers import LinearLayers, linear_layers, tied_weights

NAME = "default"
"""Name of the adapter inside peft's layers; files do not carry it."""
_RECORD = "_snugfit_adapter"
_SETTINGS = ("adapter", "adapter_rank", "adapter_alpha", "adapter_dropout", "adapter_targets", "adapter_head")
_LISTED = 16

logger = logging.getLogger("snugfit")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AdapterRecord:
    """What was done to a model that carries adapters."""

    settings: dict[str, Any]
    """Recipe field -> value, of the fields that the adapters depend on, as far as they are known (files do not say all)."""
    classifier: tuple[str, ...]
    """Names of the modules of the head that are trained as they are."""
    trained: tuple[str, ...]
    """Parameters that were trained before."""
    fast_paths: dict[str, int]
    """`nn.TransformerEncoderLayer` -> the setting of its fast path, which reads weights past the adapters."""


class Adapter(ModelTechnique):
    """Puts adapters beside linear layers and freezes everything else."""

    field = "adapter"

    def change(self, model: nn.Module) -> None:
        """Adds the adapters, or keeps those that an earlier `prepare` has added."""
        recipe, known = self.setup.recipe, adapter_record(model)
        settings = {name: getattr(recipe, name) for name in _SETTINGS}
        if known is not None:
            other = [f"{name}={value}" for name, value in known.settings.items() if value != settings[name]]
            if not other:
                return
            raise InputError(
                f"the model carries adapters already, with {', '.join(other)}. Give the same settings to go on, or "
                "merge them first with snugfit.merge_adapter(model)."
            )
        layers = linear_layers(model)
        names = target_names(model, layers, recipe)
        config = lora_config(recipe, names, model)
        record = add_adapters(
            model, config, classifier=tuple(layers.classifier), settings=settings, seed=self.setup.workload.seed
        )
        trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        packed = (module for module in model.modules() if isinstance(module, FrozenLinear))
        frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
        frozen += sum(layer.in_features * layer.out_features for layer in packed)
        head = f"; {', '.join(record.classifier)} is trained as it is" if record.classifier else ""
        logger.info(
            "%s beside %d linear layers: %d of %d parameters are trained%s.",
            recipe.adapter, len(names), trained, trained + frozen, head,
        )  # fmt: skip


def peft_library() -> ModuleType:
    """Returns peft.

    Raises:
        InputError: It is not installed.
    """
    try:
        with _quietly():
            import peft
    except ImportError as error:
        raise InputError(
            f"adapters need the library peft, which does not import ({error}). Run: pip install snugfit[text]"
        ) from error
    module: ModuleType = peft
    return module


@functools.cache
def load_peft() -> None:
    """Loads peft, and what it loads only when a first adapter is made (bitsandbytes and torchao where they are installed).

    A simulation calls this before it records: libraries must not be loaded while tensors have no values.

    Raises:
        InputError: peft is not installed.
    """
    peft = peft_library()
    config = peft.LoraConfig(r=1, target_modules=["0"], use_dora=True)
    with torch.random.fork_rng(devices=()), _quietly():
        peft.inject_adapter_in_model(config, nn.Sequential(nn.Linear(1, 1)))


def adapter_record(model: nn.Module) -> AdapterRecord | None:
    """Returns what was done to a model that carries adapters of ours, else None.

    Args:
        model: Any module.
    """
    record = vars(model).get(_RECORD)
    return record if isinstance(record, AdapterRecord) else None


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """Returns the layers with an adapter beside them.

    Args:
        model: Any module.

    Returns:
        Name -> peft's layer.
    """
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


def target_names(model: nn.Module, layers: LinearLayers, recipe: Recipe) -> list[str]:
    """Returns the names of the layers that get an adapter.

    Args:
        model: The plain model.
        layers: Its linear layers.
        recipe: Its `adapter_targets` and `adapter_head`.

    Returns:
        Names, in the order of the model.

    Raises:
        InputError: There is no such layer, or the head cannot have one.
    """
    if adapted_layers(model):
        raise InputError(
            "the model carries adapters of peft already. Leave adapter out (they are trained as they are), or merge them."
        )
    if recipe.adapter_head:
        _check_head(model, layers)
    if not layers.body:
        beside = f" beside its head {', '.join(layers.classifier)}" if layers.classifier else ""
        raise InputError(
            f"adapter={recipe.adapter!r}: {type(model).__name__} has no linear layer{beside}, and adapters stand beside "
            "linear layers. Train the model itself (adapter=none), or freeze a part of it."
        )
    wanted = set(layers.output) if recipe.adapter_head else set()
    if isinstance(recipe.adapter_targets, str):
        wanted |= set(layers.body)
    else:
        for pattern in recipe.adapter_targets:
            matched = fnmatch.filter(layers.body, pattern)
            if not matched:
                raise _no_match(pattern, layers)
            wanted |= set(matched)
    return [name for name in (*layers.body, *layers.output) if name in wanted]


def lora_config(recipe: Recipe, names: list[str], model: nn.Module) -> Any:
    """Returns peft's settings.

    Args:
        recipe: The adapter's fields.
        names: Layers that get an adapter.
        model: The plain model.

    Returns:
        A `peft.LoraConfig`.
    """
    alpha = recipe.adapter_alpha
    return peft_library().LoraConfig(
        r=recipe.adapter_rank,
        lora_alpha=int(alpha) if alpha == int(alpha) else alpha,
        lora_dropout=recipe.adapter_dropout,
        use_rslora=recipe.adapter == "rslora",
        use_dora=recipe.adapter == "dora",
        target_modules=_just_these(names, model),
        fan_in_fan_out=any(not isinstance(model.get_submodule(name), nn.Linear) for name in names),
    )


def add_adapters(
    model: nn.Module, config: Any, *, classifier: tuple[str, ...], settings: dict[str, Any], seed: int
) -> AdapterRecord:
    """Puts adapters into a model and freezes everything else but the head of a classifier.

    Args:
        model: The plain model; changed in place.
        config: A `peft.LoraConfig`.
        classifier: Names of the modules that are trained as they are.
        settings: The recipe's fields, to be remembered.
        seed: Decides the adapters' first values.

    Returns:
        What was done; the model remembers it, too.
    """
    peft = peft_library()
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    with torch.random.fork_rng(devices=()), _quietly():  # adapters are drawn on the host, whatever the device
        torch.manual_seed(seed)
        with _device_known(model):
            peft.inject_adapter_in_model(config, model, adapter_name=NAME)
    layers = adapted_layers(model)
    _replace_everywhere(model, {layer.get_base_layer(): layer for layer in layers.values()})
    for layer in layers.values():
        _follow_dtype(layer)
        layer.register_state_dict_post_hook(_to_plain_keys)
        layer.register_load_state_dict_pre_hook(_from_plain_keys)
        if isinstance(layer.get_base_layer(), FrozenLinear):
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
    """Adds the adapters to the weights they stand beside and takes them out of the model, layer by layer.

    Args:
        model: A model with adapters; changed in place. What was trained before the adapters came is trained again.

    Raises:
        InputError: There are no adapters, the weights are quantised, or an adapter is not finite.
    """
    layers = adapted_layers(model)
    if not layers:
        raise InputError("the model has no adapters to merge.")
    for layer in layers.values():
        if isinstance(layer.get_base_layer(), FrozenLinear):
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
    """Stands in for peft's `merge` where the weights are quantised; there it would be lost without a word.

    Raises:
        InputError: Always.
    """
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
def _quietly() -> Iterator[None]:
    """Keeps warnings about torchao, which peft imports and we do not use, from people who did not ask for it."""
    log = logging.getLogger("torch.utils._pytree")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _check_head(model: nn.Module, layers: LinearLayers) -> None:
    if not layers.output:
        raise InputError(
            f"adapter_head: {type(model).__name__} has no language model's output head. Leave it out"
            + (f"; the head {', '.join(layers.classifier)} is trained as it is." if layers.classifier else ".")
        )
    name, head = next(iter(layers.output.items()))
    if head._parameters.get("weight") in tied_weights(model):
        raise InputError(
            f"adapter_head: the output head {name!r} shares its weight with the embedding, and an adapter beside it could "
            "not be merged without changing the embedding, too. Leave adapter_head out."
        )


def _no_match(pattern: str, layers: LinearLayers) -> InputError:
    heads = fnmatch.filter([*layers.classifier, *layers.output], pattern)
    if heads:
        what = "needs adapter_head" if layers.output else "is trained as it is and takes no adapter"
        return InputError(f"adapter_targets {pattern!r} matches only the head {heads[0]!r}, which {what}.")
    kinds = list(dict.fromkeys(_kind_of(name) for name in layers.body))
    more = [f"and {len(kinds) - _LISTED} more"] if len(kinds) > _LISTED else []
    hint = did_you_mean(pattern, kinds).partition("llowed: ")[0]
    return InputError(
        f"adapter_targets {pattern!r} matches no linear layer; {hint}llowed: "
        f"{', '.join([*kinds[:_LISTED], *more])}, or all-linear."
    )


def _kind_of(name: str) -> str:
    """The pattern of all layers with the same role: `*.q_proj`, or `*.mlp.0` where a number alone would say nothing."""
    parts = name.split(".")
    tail = parts[-2:] if parts[-1].isdigit() and len(parts) > 1 else parts[-1:]
    return name if len(tail) == len(parts) else ".".join(["*", *tail])


def _just_these(names: list[str], model: nn.Module) -> list[str] | str:
    """The names as peft's `target_modules`, which also match as endings of others; a regular expression where they would."""
    endings = tuple(f".{name}" for name in names)
    chosen = set(names)
    more = any(name not in chosen and name.endswith(endings) for name, _ in model.named_modules())
    return "|".join(re.escape(name) for name in names) if more else names


def _replace_everywhere(model: nn.Module, replacements: dict[nn.Module, nn.Module]) -> None:
    """Puts modules in the place of others wherever these are registered; peft replaces a shared layer only once."""
    new = {id(module) for module in replacements.values()}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in replacements and id(parent) not in new:
                parent._modules[name] = replacements[child]


def _follow_dtype(layer: Any) -> None:
    """Gives an adapter the dtype of the layer beside it; peft holds 16-bit ones in fp32."""
    base = layer.get_base_layer()
    dtype = base.dtype if isinstance(base, FrozenLinear) else base.weight.dtype
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
    for key, value in own:
        if key.startswith(inner):
            state[prefix + key.removeprefix(inner)] = value
    state.update((key, value) for key, value in own if not key.startswith(inner))


def _from_plain_keys(layer: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Gives tensors of the plain model to the frozen layer; names of peft's own pass as they are."""
    for key in [key for key in state if key.startswith(prefix)]:
        tail = key.removeprefix(prefix)
        if tail.split(".")[0] not in layer._modules:
            state[f"{prefix}base_layer.{tail}"] = state.pop(key)
