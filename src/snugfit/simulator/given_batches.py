"""What is given as a batch: one, whatever its kind, or several that are said to be several. Imports no torch."""

from __future__ import annotations

import dataclasses
from typing import Any

from snugfit.errors import InputError

NOT_GIVEN: Any = type("NotGiven", (), {"__repr__": lambda _: "not given"})()
"""Default of `batch`; None is a batch, too, for a step that needs none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Batches:
    """Several batches, which the steps go through; anything else is one batch, lists included."""

    each: tuple[Any, ...]


def batches_of(given: Any) -> list[Any]:
    """Returns the batches of a request, one or several."""
    return list(given.each) if isinstance(given, Batches) else [given]


def given_batches(batch: Any, batches: Any, step: Any = None) -> Any:
    """Returns what was given as `batch` or as `batches`; `InputError` unless it is exactly one of them.

    `step`: a step of one's own, which may need no batch; any other one takes something.
    """
    if step is None and any(one is None for one in (batch, *(batches if isinstance(batches, list | tuple) else ()))):
        raise InputError("a batch is None, on which nothing can be trained; give what your DataLoader yields.")
    if batches is None:
        if batch is NOT_GIVEN:
            raise InputError("no batch is given; give one as the second argument, or several as batches=[...].")
        return batch
    if batch is not NOT_GIVEN:
        raise InputError("batch and batches= are both given; give one batch, or several as batches=[...].")
    if not isinstance(batches, list | tuple):
        raise InputError(
            f"batches is a {type(batches).__name__}; give a list of batches, or one as the second argument."
        )
    if not batches:
        raise InputError("the list of batches is empty; give at least one batch.")
    return Batches(tuple(batches))
