"""A recipe as lines of a script: `snugfit.apply` before the optimizer is made, or plain torch, and the optimizer's call.

The lines are put into the text of the file in which the optimizer is made, and that text is what a plan simulates.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from snugfit.errors import InputError, about
from snugfit.recipe import Recipe
from snugfit.simulator.script_seen import ScriptSeen, SeenModel, SeenOptimizer
from snugfit.simulator.script_text import ScriptText

STYLES = ("snugfit", "torch")
"""What lines may be made of."""
_TF32 = 'torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.conv.fp32_precision = "tf32"'
_LOW_BIT = {"adamw8bit": "AdamW8bit", "paged-adamw8bit": "PagedAdamW8bit"}
"""Optimizer of a recipe -> class of bitsandbytes that takes AdamW's arguments."""
_NOT_TAKEN = ("fused", "foreach", "capturable", "differentiable", "maximize")
"""Arguments of torch's AdamW that it does not take."""
_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""Optimizers that torch has fused kernels for, on cards and on cpu."""
_CHECKPOINTED = (
    "block.forward = functools.partial(torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False)"
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """How recipes are said in a script."""

    seen: ScriptSeen
    """Where there is room for them."""
    texts: Mapping[str, str]
    """Each file of those places -> its text."""
    style: str = "snugfit"
    """Of `STYLES`."""
    fused: bool = False
    """Whether optimizers are told to take torch's fused kernels."""

    def changed(self, recipe: Recipe) -> dict[str, str]:
        """Returns file -> its text with a recipe's lines; `InputError` for what cannot be said so."""
        files = {path: ScriptText(path, text) for path, text in self.texts.items()}
        alone = self.alone(recipe)
        for model, (statements, imports) in zip(self.seen.models, alone, strict=True):
            if model.place is None:
                continue
            text = files[model.place.file]
            if statements:
                text.put_before(model.place, statements)
            for module in imports:
                text.imports(module)
        for optimizer in self.seen.optimizers:
            self._change_optimizer(recipe, optimizer, files)
        return {path: new for path, file in files.items() if (new := file.changed()) != self.texts[path]}

    def put_on(self, recipe: Recipe) -> list[str]:
        """Returns the statements for a model without a name, which stand in no file."""
        both = zip(self.seen.models, self.alone(recipe), strict=True)
        return [one for model, (statements, _) in both if model.place is None for one in statements]

    def alone(self, recipe: Recipe) -> list[tuple[list[str], list[str]]]:
        """Returns for each model the statements that are put before its optimizer, and what they import."""
        made = _of_snugfit if self.style == "snugfit" else _of_torch
        found = [made(model, self._for(model, recipe)) for model in self.seen.models]
        if recipe.precision == "tf32" and found:
            statements, imports = found[0]
            statements.insert(0, _TF32)
            imports.append("torch")
        return found

    def _for(self, model: SeenModel, recipe: Recipe) -> dict[str, Any]:
        """The fields of a recipe that a model carries, its blocks by its own names."""
        fields = {name: getattr(recipe, name) for name in recipe.to_mapping(defaults=False)}
        fields.pop("optimizer", None)
        if recipe.precision == "tf32":
            del fields["precision"]
        if recipe.precision == "16-mixed":
            with about("precision"):
                raise InputError("precision='16-mixed' needs a GradScaler around the script's backward().")
        chosen, alone = recipe.checkpoint, len(self.seen.models) == 1
        if chosen != "none" and not model.blocks and any(other.blocks for other in self.seen.models):
            fields.pop("checkpoint")
            fields.pop("offload_activations", None)
            return fields
        as_recorded = alone and list(model.blocks) == list(model.blocks.values())
        if isinstance(chosen, tuple) or (chosen.startswith("blocks:") and not as_recorded):
            everywhere = [name for other in self.seen.models for name in other.blocks]
            names = chosen if isinstance(chosen, tuple) else everywhere[: int(chosen.partition(":")[2])]
            own = tuple(model.blocks.get(name, name if alone else "") for name in names)
            fields["checkpoint"] = tuple(filter(None, own))
            if not fields["checkpoint"]:
                del fields["checkpoint"]
        return fields

    def can_fuse(self) -> bool:
        """Returns whether some optimizer could be told to take fused kernels and is not."""
        return any(map(_may_fuse, self.seen.optimizers))

    def _change_optimizer(self, recipe: Recipe, optimizer: SeenOptimizer, files: Mapping[str, ScriptText]) -> None:
        place = optimizer.place
        if recipe.optimizer is not None:
            name = _LOW_BIT.get(recipe.optimizer)
            replaceable = optimizer.algorithm == "adamw" and "amsgrad" not in optimizer.settings
            if name is None or place is None or not replaceable:
                with about("optimizer"):
                    raise InputError(
                        f"of a script's optimizers, only torch's AdamW that it makes itself can be replaced, by "
                        f"{' or '.join(_LOW_BIT)}; others need other settings."
                    )
            files[place.file].in_call(place, optimizer.kind, renamed=f"bitsandbytes.optim.{name}", without=_NOT_TAKEN)
            files[place.file].imports("bitsandbytes")
        elif self.fused and _may_fuse(optimizer):
            assert place is not None
            files[place.file].in_call(place, optimizer.kind, given="fused=True", without=("fused", "foreach"))


def _may_fuse(optimizer: SeenOptimizer) -> bool:
    ruled_out = {"fused", "differentiable"} & set(optimizer.settings)
    return optimizer.kind in _FUSED and optimizer.place is not None and not ruled_out


def _of_snugfit(model: SeenModel, fields: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    if not fields:
        return [], []
    recipe = ", ".join(f"{name}={_written(value)}" for name, value in fields.items())
    return [f"snugfit.apply({model.name}, snugfit.Recipe({recipe}))"], ["snugfit"]


def _of_torch(model: SeenModel, fields: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    other = next((name for name in fields if name != "checkpoint"), None)
    if other is not None:
        with about(other):
            raise InputError(f"{other}={fields[other]!r} is more than a line of plain torch. Take --as snugfit for it.")
    chosen = fields.get("checkpoint", "none")
    if chosen == "none":
        return [], []
    if model.batch_norm:
        raise InputError(
            "torch's checkpoint moves the running statistics of batch norm twice. Take --as snugfit, which does not."
        )
    if chosen == "all" and model.own_checkpoints:
        return [f'{model.name}.gradient_checkpointing_enable({{"use_reentrant": False}})'], []
    names = list(model.blocks.values())
    if isinstance(chosen, tuple):
        names = list(chosen)
    elif chosen.startswith("blocks:"):
        names = names[: int(chosen.partition(":")[2])]
    elif chosen != "all":
        raise InputError(f"checkpoint={chosen!r} is more than a line of plain torch. Take --as snugfit for it.")
    if not names:
        raise InputError(f"checkpoint={chosen!r} found no repeated blocks in {model.name}.")
    return [f"for block in {_blocks(model.name, names)}:\n    {_CHECKPOINTED}"], ["functools", "torch.utils.checkpoint"]


def _blocks(model: str, names: Sequence[str]) -> str:
    """An expression for modules by their names: parts of containers where they stand in a row, else each by its name."""
    rows = [
        (parent, [name.rpartition(".")[2] for name in group]) for parent, group in itertools.groupby(names, _parent)
    ]
    if any(numbers != [str(at) for at in range(len(numbers))] for _, numbers in rows):
        return f"map({model}.get_submodule, {_written(tuple(names))})"
    parts = [f"{_attribute(model, parent)}[:{len(numbers)}]" for parent, numbers in rows]
    return parts[0] if len(parts) == 1 else f"[{', '.join(f'*{part}' for part in parts)}]"


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _attribute(model: str, name: str) -> str:
    return "".join([model, *(f"[{part}]" if part.isdigit() else f".{part}" for part in name.split(".") if part)])


def _written(value: Any) -> str:
    """A value in the quotes that most code has."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_written, value))}{',' if len(value) == 1 else ''})"
    return f'"{value}"' if isinstance(value, str) else repr(value)
