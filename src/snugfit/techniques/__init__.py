"""The techniques there are, in the order in which they are shown. Each is a package, or a file, that declares itself.

The docstring of the package is the essay, `TECHNIQUE` what it declares (`declaration.py`). Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from snugfit.techniques import (
    accumulate_dtype,
    adapter,
    attention,
    checkpoint,
    compile,
    init,
    inplace,
    loading,
    loss_impl,
    low_bit_optimizer,
    microbatch,
    mixed_precision,
    muon,
    offload_activations,
    offload_optimizer,
    optimizer,
    optimizer_impl,
    paged_adamw,
    quantize,
    shard,
    step_in_backward,
    stochastic_rounding,
    tensor_parallel,
    tf32,
    true_precision,
)
from snugfit.techniques.declaration import OptimizerName, Technique

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

TECHNIQUES: tuple[Technique, ...] = (
    mixed_precision.TECHNIQUE,
    true_precision.TECHNIQUE,
    tf32.TECHNIQUE,
    microbatch.TECHNIQUE,
    accumulate_dtype.TECHNIQUE,
    checkpoint.TECHNIQUE,
    offload_activations.TECHNIQUE,
    optimizer.TECHNIQUE,
    muon.TECHNIQUE,
    low_bit_optimizer.TECHNIQUE,
    paged_adamw.TECHNIQUE,
    offload_optimizer.TECHNIQUE,
    step_in_backward.TECHNIQUE,
    optimizer_impl.TECHNIQUE,
    stochastic_rounding.TECHNIQUE,
    init.TECHNIQUE,
    loading.TECHNIQUE,
    inplace.TECHNIQUE,
    compile.TECHNIQUE,
    attention.TECHNIQUE,
    loss_impl.TECHNIQUE,
    adapter.TECHNIQUE,
    quantize.TECHNIQUE,
    shard.TECHNIQUE,
    tensor_parallel.TECHNIQUE,
)

OPTIMIZER_NAMES: Mapping[str, OptimizerName] = {one.name: one for row in TECHNIQUES for one in row.optimizers}
"""Every optimizer that can be asked for by name."""


LOOP_FIELDS = frozenset(field for row in TECHNIQUES if row.in_the_loop for field in row.fields)
"""Fields of what does not live in a model, but belongs to whoever takes the step."""


def joined(table: str) -> dict[str, dict[Any, Any]]:
    """Returns one table of all techniques: field -> rows, put together from what each declares."""
    found: dict[str, dict[Any, Any]] = {}
    for row in TECHNIQUES:
        found.setdefault(row.fields[0], {}).update(getattr(row, table))
    return {field: rows for field, rows in found.items() if rows}


def each_builds(recipe: Recipe) -> bool:
    """Returns whether each of several processes must build the model, because a technique needs its weights early."""
    fields = type(recipe).__dataclass_fields__
    read = [row.fields[0] for row in TECHNIQUES if row.reads_weights]
    return any(getattr(recipe, name) != fields[name].default for name in read)


def left_to_the_loop(recipe: Recipe) -> list[str]:
    """Returns a sentence for each field of a recipe that a model cannot carry into somebody's own training loop."""
    fields = type(recipe).__dataclass_fields__
    said = {}
    for row in TECHNIQUES:
        for name in row.fields if row.in_the_loop else ():
            value = getattr(recipe, name)
            of_another = row.optimizers and value not in [one.name for one in row.optimizers]
            if value != fields[name].default and not of_another:
                said[name] = f"{name}={value!r} belongs to the loop, which is yours here: {row.in_the_loop}."
    return list(said.values())
