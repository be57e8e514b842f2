"""What a pass through a loader keeps of each batch on the device: a run goes through more batches than an estimate does."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from typing import Any

from snugfit.units import format_bytes

_LEAST_SHARE = 0.02
"""Part of the peak that the batches which are left out must keep to count."""
_MOST_BATCHES = 32
"""Batches of an evaluation that are gone through while each keeps something; before the first step all are."""
_MOST_TENSORS = 5000
"""Tensors that more batches may make, so that what is computed of all results of a small model has its size."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Processed:
    """A batch that was gone through, when the next one is asked for."""

    number: int
    step: int
    elements: int
    alive_bytes: int
    storages: int


class LoaderPass:
    """One pass through a loader, which is ended early."""

    def __init__(self, loader: Any, recorder: Any) -> None:
        """Begins one."""
        try:
            self._batches = len(loader)
        except TypeError:  # a stream
            self._batches = 0
        samples = getattr(loader.dataset, "represented", None)  # a few samples that stand for a data set
        if samples:
            self._batches = math.ceil(self._batches * samples / len(loader.dataset))
        self._recorder = recorder
        self._rows: list[_Processed] = []
        self.later_bytes = 0
        """What the batches that are left out keep beside what is counted, once `end` has found it."""

    def processed(self, elements: int, step: int) -> None:
        """Takes down that a batch was gone through, of so many numbers; `step`: steps of the optimizer so far."""
        ledger = self._recorder.ledger
        self._rows.append(_Processed(len(self._rows), step, elements, ledger.allocated_bytes, ledger.made))

    @property
    def _after_steps(self) -> list[_Processed]:
        return [after for before, after in itertools.pairwise(self._rows) if after.step != before.step]

    def goes_on(self) -> bool:
        """Returns whether more batches have to be seen to know if what is kept of each has an end: a queue is full soon."""
        if self._rows[-1].step == 0:  # features that training is to read
            return self._kept_bytes() > 0
        are_few = len(self._rows) < _MOST_BATCHES or self._rows[-1].storages - self._rows[0].storages < _MOST_TENSORS
        return are_few and self._is_much(self._batches) and not self._after_steps and self._left > 0

    @property
    def _left(self) -> int:
        return max(self._batches - len(self._rows), 0)

    def _is_much(self, batches: int) -> bool:
        peak_bytes: int = self._recorder.ledger.peak_bytes
        return self._kept_bytes() * batches > peak_bytes * _LEAST_SHARE

    def end(self) -> str:
        """Counts for a moment what all other batches would keep, and returns what to say; empty where that is little."""
        import torch

        if not self._is_much(self._left):
            return ""
        each_bytes, ledger = self._kept_bytes(), self._recorder.ledger
        made = [0, *(row.storages for row in self._rows)]
        largest_bytes, operator, line = ledger.largest_of(range(made[-3], made[-2]))
        if largest_bytes * 4 < each_bytes:  # nothing of the batch before is left: results lie in one that is made anew
            _, operator, line = ledger.largest_of(range(made[-2], ledger.made))
        each, left = format_bytes(math.floor(each_bytes)), format_bytes(math.floor(each_bytes * self._left))
        if self._after_steps:  # which a step's own peak would come on top of; how many there are, the script may decide
            self.later_bytes = math.floor(each_bytes * self._left)
            how = f"the {self._left} behind those that are estimated would take {left} more, which no peak counts"
        else:
            # Who keeps results joins them in the end, or with each batch anew: then all are there twice.
            counted_bytes = math.floor(each_bytes * (self._left + self._batches))
            torch.empty(counted_bytes, dtype=torch.uint8, device=self._recorder.personality.device)
            how = (
                f"for those after the first {len(self._rows)}, and for joining all, {format_bytes(counted_bytes)} are "
                "counted at its end (what is computed of all of them then is not)"
            )
        own = " (eval_accumulation_steps of a Trainer)" if "transformers.trainer" in sys.modules else ""
        return (
            f"a pass through {self._batches} batches keeps {each} of each on the device, the largest part made by "
            f"{operator}{f' at {line}' if line else ''}: {how}. Where nobody needs them there, keep them without their "
            f"graph and move them to the host as they come{own}."
        )

    def _kept_bytes(self) -> float:
        """Bytes that each batch leaves behind: the least difference between batches of one size."""
        rows = self._after_steps or self._rows
        pairs = list(itertools.pairwise(rows))
        if not pairs or any(after.elements > before.elements for before, after in pairs):
            return 0.0
        return min((after.alive_bytes - before.alive_bytes) / (after.number - before.number) for before, after in pairs)
