"""How batches reach the training process."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import TYPE_CHECKING

import torch

from snugfit.errors import SnugfitWarning

if TYPE_CHECKING:
    from snugfit.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LoadingOptions:
    """How batches reach the training process."""

    workers: int
    """Processes that load; 0 loads in the training process."""

    pin_memory: bool
    """Whether batches come in page-locked memory."""

    prefetch: int
    """Batches each worker keeps ready."""

    def as_arguments(self) -> dict[str, int | bool]:
        """Returns the options as keyword arguments of `workloads.loader.batches`."""
        return dataclasses.asdict(self)


def loading_options(recipe: Recipe) -> LoadingOptions:
    """Returns the part of a recipe that says how data is loaded.

    Args:
        recipe: How the step is held in memory.

    Returns:
        The options of the loader; `pin_memory` is off, with a warning, where there is nothing to copy to.
    """
    return LoadingOptions(
        workers=recipe.workers, pin_memory=usable_pin_memory(recipe.pin_memory), prefetch=recipe.prefetch
    )


def usable_pin_memory(wanted: bool) -> bool:
    """Returns whether batches are to be page-locked: only where a CUDA device takes them.

    Args:
        wanted: What the recipe asks for.

    Returns:
        `wanted` with CUDA, else False; says once in a process that the wish has no effect.
    """
    if wanted and not torch.cuda.is_available():
        _warn_no_effect()
        return False
    return wanted


@functools.cache
def _warn_no_effect() -> None:
    warnings.warn(
        "pin_memory has no effect here: there is no CUDA device to copy to. Leave it out.", SnugfitWarning, stacklevel=4
    )
