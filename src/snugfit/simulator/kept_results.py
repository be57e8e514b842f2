"""What a pass through a loader keeps of each batch on the device: a run goes through more batches than an estimate does."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from snugfit.units import format_bytes

_LEAST_SHARE = 0.02
"""Part of the peak that the batches which are left out must keep to count."""


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

    def processed(self, batch: Any, step: int) -> None:
        """Takes down that a batch was gone through; `step`: steps of the optimizer so far."""
        from snugfit.training.fallbacks import elements

        ledger = self._recorder.ledger
        self._rows.append(_Processed(len(self._rows), step, elements(batch), ledger.allocated_bytes, ledger.made))

    def end(self) -> str:
        """Counts for a moment what all other batches would keep, and returns what to say; empty where that is little."""
        import torch

        ledger, left = self._recorder.ledger, self._batches - len(self._rows)
        each_bytes = self._kept_bytes()
        if left <= 0 or each_bytes * left <= ledger.peak_bytes * _LEAST_SHARE:
            return ""
        made = [0, *(row.storages for row in self._rows)]
        largest_bytes, operator, line = ledger.largest_of(range(made[-3], made[-2]))
        counted_bytes, joined = each_bytes * left, ""
        if (
            largest_bytes * 4 < each_bytes
        ):  # nothing of the batch before is left: all results lie in one that is made anew
            _, operator, line = ledger.largest_of(range(made[-2], ledger.made))
            counted_bytes, joined = counted_bytes + each_bytes * (self._batches - 1), ", joined anew with all before"
        torch.empty(math.floor(counted_bytes), dtype=torch.uint8, device=self._recorder.personality.device)
        each, counted = (format_bytes(math.floor(number)) for number in (each_bytes, counted_bytes))
        return (
            f"a pass through {self._batches} batches keeps {each} of each on the device{joined}, the largest part made by "
            f"{operator}{f' at {line}' if line else ''}: for those after the first {len(self._rows)}, {counted} are counted "
            "at its end. Where nobody needs them there, move them to the host as they come (eval_accumulation_steps of a "
            "Trainer)."
        )

    def _kept_bytes(self) -> float:
        """Bytes that each batch leaves behind: the least of the last two differences between batches of one size."""
        rows = self._rows
        after_steps = [after for before, after in itertools.pairwise(rows) if after.step != before.step]
        rows = (after_steps if len(after_steps) > 1 else rows)[-3:]
        if len(rows) < 2 or any(after.elements > before.elements for before, after in itertools.pairwise(rows)):
            return 0.0
        return min(
            (after.alive_bytes - before.alive_bytes) / (after.number - before.number)
            for before, after in itertools.pairwise(rows)
        )
