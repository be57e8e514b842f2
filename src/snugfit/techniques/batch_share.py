"""Which samples of a batch one of several GPUs takes, and how many."""

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


def at_once(recipe: Recipe, workload: Workload | None) -> int | None:
    """Returns the samples that go through the model at a time on a GPU; None where that is not known."""
    return recipe.microbatch_size or (None if workload is None else largest_share(recipe, workload))


def share_of(samples: int, ranks: int, number: int) -> tuple[int, int]:
    """Returns where a process's share of a batch starts and ends; the first shares are larger by the remainder."""
    return -(-samples * number // ranks), -(-samples * (number + 1) // ranks)
