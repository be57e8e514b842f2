"""The optimizers of a hand-written step: one, several in a list, a tuple or a dict (a GAN has two), or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.optim import Optimizer

from snugfit.errors import InputError

_KINDS = "a name, a function from parameters to one, an optimizer, or a list, tuple or dict of such"


def each_optimizer(given: Any) -> list[Any]:
    """Returns what was given as optimizers, one by one."""
    found: list[Any] = []
    map_optimizers(given, found.append)
    return found


def map_optimizers(given: Any, change: Callable[[Any], Any]) -> Any:
    """Returns the same nesting with something done to each optimizer; None stays None.

    `given`: a name, a function from parameters to an optimizer, an optimizer, None; or a list, tuple or dict of such.
    """
    if isinstance(given, Mapping):
        return {name: map_optimizers(one, change) for name, one in given.items()}
    if isinstance(given, list | tuple):
        parts = [map_optimizers(one, change) for one in given]
        return type(given)(*parts) if hasattr(given, "_fields") else type(given)(parts)
    if given is None:
        return None
    if not (isinstance(given, str | Optimizer) or callable(given)):
        raise InputError(f"optimizer holds a {type(given).__name__}; for step= give {_KINDS}.")
    return change(given)


def made_of(given: Any, parameters: Callable[[], Iterable[Any]]) -> Any:
    """Returns the nesting with functions replaced by the optimizers they make; each gets a new iterator of parameters."""
    return map_optimizers(given, lambda one: one if isinstance(one, Optimizer) else one(parameters()))
