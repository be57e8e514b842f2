"""Adapters put beside the linear layers of a model, and everything else frozen."""

from __future__ import annotations

import fnmatch
import math
import re
from typing import TYPE_CHECKING, Any

from torch import nn

from snugfit.errors import InputError, did_you_mean, listed, note
from snugfit.techniques.adapter import TECHNIQUE
from snugfit.techniques.adapter.experts import expert_stacks
from snugfit.techniques.adapter.layers import adapted_layers, adapter_record, add_adapters, peft_library
from snugfit.techniques.base import ModelTechnique
from snugfit.techniques.linear_layers import LinearLayers, linear_layers, tied_weights
from snugfit.techniques.packed_weight import PackedWeight

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

_LISTED = 16
_NO_EXPERTS = " The experts get none: name them with adapter_targets, such as *.experts.*, or * for all there is."


class Adapter(ModelTechnique):
    """Puts adapters beside linear layers and freezes everything else."""

    field = "adapter"
    stays = "adapters, and weights that they have frozen (snugfit.merge_adapter makes them one)"

    def change(self, model: nn.Module) -> None:
        """Adds the adapters, or keeps those that an earlier `prepare` has added."""
        recipe, known = self.setup.recipe, adapter_record(model)
        settings = {name: getattr(recipe, name) for name in TECHNIQUE.fields}
        if known is not None:
            other = [f"{name}={value}" for name, value in known.settings.items() if value != settings[name]]
            if not other:
                return
            raise InputError(
                f"the model carries adapters already, with {', '.join(other)}. Give the same settings to go on, or "
                "merge them first with snugfit.merge_adapter(model)."
            )
        layers = linear_layers(model)
        names, stacks = target_names(model, layers, recipe)
        config = lora_config(recipe, names, stacks, model)
        record = add_adapters(
            model, config, classifier=tuple(layers.classifier), settings=settings, seed=self.setup.workload.seed
        )
        trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        packed = (module for module in model.modules() if isinstance(module, PackedWeight))
        frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
        frozen += sum(math.prod(layer.packed_shape) for layer in packed)
        head = f"; {', '.join(record.classifier)} is trained as it is" if record.classifier else ""
        count = f"{trained} of {trained + frozen} parameters are trained{head}"
        beside = f" and {len(stacks)} stacks of experts" if stacks else ""
        none = "" if stacks or not expert_stacks(model) else _NO_EXPERTS
        note(f"{recipe.adapter} beside {len(names)} linear layers{beside}: {count}.{none}")


def target_names(model: nn.Module, layers: LinearLayers, recipe: Recipe) -> tuple[list[str], list[str]]:
    """Returns the names of the layers and stacks of experts that get an adapter; `InputError` where none can have one.

    Linear layers, and the stacks of experts that a pattern names, each in the order of the model.
    """
    if adapted_layers(model):
        raise InputError(
            "the model carries adapters of peft already. Leave adapter out (they are trained as they are), or merge them."
        )
    if recipe.adapter_head:
        _check_head(model, layers)
    stacks = expert_stacks(model)
    if not layers.body and not (stacks and recipe.adapter_targets != "all-linear"):
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
            matched = fnmatch.filter([*layers.body, *stacks], pattern)
            if not matched:
                raise _no_match(pattern, layers, list(stacks))
            wanted |= set(matched)
    chosen = [name for name in stacks if name in wanted]
    if chosen:
        _check_stacks(chosen, recipe)
    return [name for name in (*layers.body, *layers.output) if name in wanted], chosen


def _check_stacks(names: list[str], recipe: Recipe) -> None:
    """One matrix holds the adapters of all experts, as in peft, whose wrapper knows neither of these."""
    wrong = "adapter='dora'" if recipe.adapter == "dora" else "adapter_dropout" if recipe.adapter_dropout else None
    if wrong is not None:
        raise InputError(
            f"adapter_targets names experts' stacked weights ({listed(names, 1)}), and {wrong} is not for them: it needs "
            "each expert's inputs or rows alone. Use lora or rslora without dropout, or patterns that leave the experts out."
        )


def lora_config(recipe: Recipe, names: list[str], stacks: list[str], model: nn.Module) -> Any:
    """Returns a `peft.LoraConfig` with the adapter fields of the recipe."""
    alpha = recipe.adapter_alpha
    return peft_library().LoraConfig(
        r=recipe.adapter_rank,
        lora_alpha=int(alpha) if alpha == int(alpha) else alpha,
        lora_dropout=recipe.adapter_dropout,
        use_rslora=recipe.adapter == "rslora",
        use_dora=recipe.adapter == "dora",
        target_modules=_just_these(names, model),
        target_parameters=stacks or None,
        fan_in_fan_out=any(not isinstance(model.get_submodule(name), nn.Linear) for name in names),
    )


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


def _no_match(pattern: str, layers: LinearLayers, stacks: list[str]) -> InputError:
    heads = fnmatch.filter([*layers.classifier, *layers.output], pattern)
    if heads:
        what = "needs adapter_head" if layers.output else "is trained as it is and takes no adapter"
        return InputError(f"adapter_targets {pattern!r} matches only the head {heads[0]!r}, which {what}.")
    kinds = list(dict.fromkeys(_kind_of(name) for name in (*layers.body, *stacks)))
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
