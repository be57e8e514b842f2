"""Averages of weights by torch's `AveragedModel`, which scripts often begin behind some epochs (SWA).

The first update copies the weights, the second is the first that makes something: the differences to all of them.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from snugfit.attributes import Change
from snugfit.units import format_bytes

_UPDATES = 2


class AveragedModels:
    """The averages that a script makes, and how often each was updated."""

    def __init__(self) -> None:
        """Has seen none."""
        self._updates: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def waits(self, *, enough: bool, note: Callable[[str], None]) -> bool:
        """Whether more steps may show an average's updates; `note` is told what is missing when there were `enough`."""
        late = [one for one, count in self._updates.items() if count < _UPDATES]
        if late and enough:
            size = sum(weight.nbytes for one in late for weight in one.parameters())
            note(
                "an average of weights (AveragedModel) is updated later than in the steps that were looked at: where the "
                f"script does so, it takes {format_bytes(size)} more for a moment."
            )
        return bool(late) and not enough

    def changes(self) -> list[Change]:
        """Returns what notes that averages are made and updated."""
        from torch.optim.swa_utils import AveragedModel

        made, updated, counts = AveragedModel.__init__, AveragedModel.update_parameters, self._updates

        @functools.wraps(made)
        def making(average: Any, *args: Any, **kwargs: Any) -> None:
            made(average, *args, **kwargs)
            counts[average] = 0

        @functools.wraps(updated)
        def updating(average: Any, *args: Any, **kwargs: Any) -> None:
            updated(average, *args, **kwargs)
            counts[average] = counts.get(average, 0) + 1

        return [(AveragedModel, "__init__", making), (AveragedModel, "update_parameters", updating)]
