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

        left = self._batches - len(self._rows)
        kept_bytes = math.floor(self._kept_bytes() * max(left, 0))
        if kept_bytes <= self._recorder.ledger.peak_bytes * _LEAST_SHARE:
            return ""
        operator, line = self._largest(kept_bytes // left)
        torch.empty(kept_bytes, dtype=torch.uint8, device=self._recorder.personality.device)
        return (
            f"a pass through {self._batches} batches keeps {format_bytes(kept_bytes // left)} of each on the device, the "
            f"largest part made by {operator}{f' at {line}' if line else ''}: for those after the first {len(self._rows)}, "
            f"{format_bytes(kept_bytes)} are counted at its end. Where nobody needs them there, move them to the host as "
            "they come (eval_accumulation_steps of a Trainer)."
        )

    def _largest(self, each_bytes: int) -> tuple[str, str]:
        """Operator and line of the largest result: of what a whole batch has left alive, or of what the last one made.

        `each_bytes`: what a batch keeps; where the first has no such part, all results lie in a tensor that is made anew.
        """
        ledger, made = self._recorder.ledger, [0, *(row.storages for row in self._rows)]
        size, operator, line = ledger.largest_of(range(made[-3], made[-2]))
        if size * 4 < each_bytes:
            _, operator, line = ledger.largest_of(range(made[-2], ledger.made))
        return operator, line

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
