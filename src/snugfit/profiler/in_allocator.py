"""Tensors that lie in torch's allocator and do not look like it.

A library that takes one block for a whole file of weights and cuts tensors out of it (safetensors does so) leaves storages
that cannot be resized, as those of numpy and of mapped files are. They are told apart by what the allocator holds: where it
has, after every operator of their life, as many bytes beside all other tensors as they take, they are these bytes.

Pure functions over ints; nothing here knows torch.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from snugfit.profiler.temporaries import OperatorMark, beside_tensors
from snugfit.recording.trace import ALLOC, FREE, Trace

_SURELY = 8
"""Operators that must have taken memory in the life of a tensor; fewer may all have had as much inside them."""


def with_those_in_allocator(trace: Trace, marks: Sequence[OperatorMark], peaks: Sequence[int]) -> Trace:
    """Returns a CPU's trace with host tensors that lie in torch's allocator among those on the device.

    `peaks`: the allocator's highest point up to each mark, in bytes; 0 where it is not known.
    """
    beside = beside_tensors(trace, marks, peaks)
    storages = list(trace.storages)
    # Those that live longest first: what is left to others is what is beside them.
    for (born, died), together in sorted(_lives(trace, marks).items(), key=lambda one: one[0][0] - one[0][1]):
        nbytes = sum(storages[number].nbytes for number in together)
        known = [left for left in beside[born:died] if left is not None]
        if len(known) < _SURELY or min(known) < nbytes:
            continue
        beside[born:died] = [None if left is None else left - nbytes for left in beside[born:died]]
        for number in together:
            storages[number] = storages[number]._replace(place="device")
    return dataclasses.replace(trace, storages=tuple(storages))


def _lives(trace: Trace, marks: Sequence[OperatorMark]) -> dict[tuple[int, int], list[int]]:
    """The host tensors by the marks in their life: the first, and the one behind the last."""
    ends = [mark.at for mark in marks]
    born: dict[int, int] = {}
    found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for event, (kind, number) in enumerate(zip(trace.kinds, trace.subjects, strict=True)):
        if kind == ALLOC and trace.storages[number].place == "host":
            born[number] = bisect.bisect_right(ends, event)
        elif kind == FREE and number in born:
            found[born.pop(number), bisect.bisect_right(ends, event)].append(number)
    for number, first in born.items():
        found[first, len(marks)].append(number)
    return found
