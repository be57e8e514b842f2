"""How many samples of a batch one of several GPUs takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.workload import Workload


def sharers(recipe: Recipe, ranks: int) -> int:
    """Returns among how many the batch is shared: the GPUs of one tensor-parallel group take the same samples."""
    return max(ranks // max(recipe.tensor_parallel, 1), 1)


def largest_share(recipe: Recipe, workload: Workload) -> int | None:
    """Returns the samples of the largest share of a batch; None where the batch's size is not known."""
    size = workload.batch_size
    return None if size is None else -(-size // sharers(recipe, workload.ranks))
