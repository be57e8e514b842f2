"""Memory inside operators, found by comparing what an allocator did with the tensors that could be seen.

A dispatch mode sees the tensors that go into an operator and come out of it, never what its kernel takes and gives back in
between. The allocator's own events show those, but name nothing. The two are put together by marks: after every operator
the profile takes a block of one odd size and gives it back at once, so the stream of the allocator's events falls into one
segment for each operator, in exact order and without any clock. What a segment's highest point has above the tensors
alive at its mark is that operator's temporaries.

Pure functions over ints; nothing here knows torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from snugfit.recording.trace import ALLOC, FREE, RESIZE, WORKSPACE, Trace, Workspace

MARK_BYTES = 4099
"""Size of the block that marks the end of an operator: a prime number that no tensor of a training run is likely to have."""


class OperatorMark(NamedTuple):
    """Where in a trace an operator ended."""

    at: int
    """How many events of the trace came before."""
    operator: str
    """The operator."""
    module: str
    """Dotted path of the module in which it ran."""
    phase: str
    """The phase in which it ran."""


class Segments(NamedTuple):
    """A stretch of the allocator's events, cut at the marks."""

    peaks: list[int]
    """For each mark, the most bytes alive right after any allocation since the mark before; 0 without an allocation."""
    rest_peak: int
    """The same for what came after the last mark."""
    balance_bytes: int
    """Bytes alive at the end."""


def cut_at_marks(sizes: Iterable[int], balance_bytes: int = 0, peak_so_far: int = 0) -> Segments:
    """Cuts an allocator's events at the marks; returns each segment's highest point, and what to go on with.

    `sizes`: bytes of each event in order: positive for an allocation, negative for a release.
    `balance_bytes`: bytes alive before the first event.
    """
    peaks, peak = [], peak_so_far
    for size in sizes:
        if size == MARK_BYTES:
            peaks.append(peak)
            peak = 0
        elif size != -MARK_BYTES:
            balance_bytes += size
            if size > 0:
                peak = max(peak, balance_bytes)
    return Segments(peaks, peak, balance_bytes)


def beside_tensors(trace: Trace, marks: Sequence[OperatorMark], peaks: Sequence[int]) -> list[int | None]:
    """Returns how many bytes the allocator's highest point up to each mark had beside all tensors alive at the mark.

    `peaks`: the allocator's highest point up to each mark, in bytes; 0 where it is not known, and None is returned.
    """
    assert not trace.runs
    found: list[int | None] = []
    sizes: dict[int, int] = {}
    live = done = 0
    for mark, peak in zip(marks, peaks, strict=True):
        for event in range(done, mark.at):
            kind, subject = trace.kinds[event], trace.subjects[event]
            if kind in (ALLOC, FREE, RESIZE) and trace.storages[subject].place == "device":
                row = trace.storages[subject]
                now = row.nbytes if kind == ALLOC else trace.values[event] if kind == RESIZE else 0
                live += now - sizes.get(subject, 0)
                sizes[subject] = now
        done = mark.at
        found.append(peak - live if peak else None)
    return found


def with_temporaries(trace: Trace, marks: Sequence[OperatorMark], peaks: Sequence[int]) -> Trace:
    """Returns a trace of tensors with the memory inside operators as workspaces at their ends; `peaks` as above."""
    kinds, subjects, values = bytearray(), list[int](), list[int]()
    workspaces = list(trace.workspaces)
    done = 0
    for mark, nbytes in zip(marks, beside_tensors(trace, marks, peaks), strict=True):
        if nbytes is not None and nbytes > 0:
            kinds += trace.kinds[done : mark.at] + bytes([WORKSPACE])
            subjects += (*trace.subjects[done : mark.at], len(workspaces))
            values += (*trace.values[done : mark.at], 0)
            workspaces.append(Workspace(nbytes, mark.operator, mark.module, mark.phase, 0))
            done = mark.at
    return dataclasses.replace(
        trace,
        workspaces=tuple(workspaces),
        kinds=bytes(kinds) + trace.kinds[done:],
        subjects=(*subjects, *trace.subjects[done:]),
        values=(*values, *trace.values[done:]),
    )
