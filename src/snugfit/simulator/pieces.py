"""Microbatches that are alike are simulated three times and counted as often as they run.

A step of 64 microbatches does the same thing 64 times. From the second on, the gradients exist; from the third on, the
allocator's cache has seen one whole round as well, so nothing new happens. The first step runs two of them, later steps
three, and the trace says how often the third stands for others (`Trace.repeats`), which the clock goes through again.
That the second and the third took down the same is checked; where they did not, all are simulated. Of several processes the
last microbatch is simulated as well, after which gradients are sent.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any

from snugfit.recording.trace import ALLOC, FREE, MARK, WORKSPACE, Repeat, Trace
from snugfit.techniques.batches import batch_length, cut, split_batch, tensors_of

FIRST_STEP, LATER_STEPS = 2, 3
"""Microbatches of one shape that are simulated in a row, in the first step and in those after it."""


class FewerPieces:
    """Cuts a batch as the step would, and leaves out what would only repeat."""

    def __init__(self, split: Callable[[Any, int], list[Any]] | None, *, last: bool = False) -> None:
        """Wraps the caller's way of cutting, or None for dimension 0.

        `last`: whether the last microbatch is kept in any case: it does more than others where processes send gradients
        after it.
        """
        self._split, self._last = split or split_batch, last
        self._first: set[int] = set()
        """Identities of the first step's pieces, of one of which several processes cut a sample in between."""
        self.left_out: list[list[tuple[int, int]]] = []
        """For each step: position of a microbatch among those that run -> how many like it were left out after it."""

    def __call__(self, batch: Any, size: int) -> list[Any]:
        """Returns the microbatches to simulate, in order, without those that would only repeat."""
        if id(batch) in self._first:
            self._first = set()
            return self._split(batch, size)
        most = LATER_STEPS if self.left_out else FIRST_STEP
        if self._split is split_batch and size < batch_length(batch):
            kept = self._cut(batch, size, most)
        else:
            kept = self._chosen(self._split(batch, size), most)
        if self._last and len(self.left_out) == 1:
            self._first = set(map(id, kept))
        return kept

    def _chosen(self, pieces: list[Any], most: int) -> list[Any]:
        """Leaves out pieces behind several of the same shapes."""
        kept: list[Any] = []
        left_out: list[tuple[int, int]] = []
        before, alike = None, 0
        for number, piece in enumerate(pieces, 1):
            shapes = [(tensor.shape, tensor.dtype) for tensor in tensors_of(piece)]
            alike = alike + 1 if shapes == before else 1
            before = shapes
            if alike <= most or (self._last and number == len(pieces)):
                kept.append(piece)
            elif alike == most + 1:
                left_out.append((len(kept) - 1, 1))
            else:
                left_out[-1] = (left_out[-1][0], left_out[-1][1] + 1)
        self.left_out.append(left_out)
        return kept

    def _cut(self, batch: Any, size: int, most: int) -> list[Any]:
        """Cuts only the kept pieces along dimension 0, where all but the last are alike."""
        length = batch_length(batch)
        starts = range(0, length, size)
        # A shorter one at the end is no piece like the others.
        ends = 1 if length % size or self._last else 0
        alike = len(starts) - ends
        kept = min(alike, most)
        self.left_out.append([(kept - 1, alike - kept)] if alike > kept else [])
        return [cut(batch, start, size, length) for start in [*starts[:kept], *starts[alike:]]]


def repeats(trace: Trace, left_out: list[list[tuple[int, int]]]) -> tuple[Repeat, ...] | None:
    """Returns the stretches of a trace that stand for several; None where alike microbatches behaved differently."""
    found = []
    for step, gaps in enumerate(left_out):
        if not gaps:
            continue
        starts = _starts(trace, step)
        for position, times in gaps:
            if position + 1 >= len(starts):
                return None
            begin, end = starts[position], starts[position + 1]
            if step > 0 and not _same(trace, (starts[position - 1], begin), (begin, end)):
                return None
            ats = [run.at for run in trace.runs]
            found.append(Repeat(bisect.bisect_right(ats, begin), bisect.bisect_right(ats, end), times))
    return tuple(found)


def _starts(trace: Trace, step: int) -> list[int]:
    """The events at which the microbatches of a step begin, and the one at which the last has ended."""
    starts: list[int] = []
    waiting = None
    for index, kind in enumerate(trace.kinds):
        if kind != MARK or trace.values[index] != 2 * step + 1:
            continue
        name = trace.phases[trace.subjects[index]]
        if name == "data":
            waiting = index
        elif name == "forward" and waiting is not None:
            starts.append(waiting)
            waiting = None
        elif name == "optimizer" and starts:
            starts.append(index)
            break
    return starts


def _same(trace: Trace, one: tuple[int, int], other: tuple[int, int]) -> bool:
    return _taken_down(trace, *one) == _taken_down(trace, *other)


def _taken_down(trace: Trace, begin: int, end: int) -> list[tuple[int, int]]:
    """Kinds of events and their bytes; for marks, what they say."""
    rows: dict[int, Any] = {ALLOC: trace.storages, FREE: trace.storages, WORKSPACE: trace.workspaces}
    found = []
    for kind, subject, value in zip(
        trace.kinds[begin:end], trace.subjects[begin:end], trace.values[begin:end], strict=True
    ):
        found.append((kind, rows[kind][subject].nbytes if kind in rows else value))
    return found
