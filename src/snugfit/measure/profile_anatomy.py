"""What lives at the peak of a run on the CPU, to the byte.

The CPU allocator gives a block of the size that was asked for, so a replay through the rounding of the CUDA allocator
(`snugfit.simulator.anatomy`) would add bytes that are not there. The result is the same `Anatomy`.
"""

from __future__ import annotations

from typing import NamedTuple

from snugfit.simulator.anatomy import OUTSIDE, Anatomy, BlockShare, LiveTensor, block_of
from snugfit.simulator.trace import ALLOC, CATEGORIES, FREE, RESIZE, WORKSPACE, Storage, Trace, Workspace


class Peak(NamedTuple):
    """Where live bytes are at their most."""

    nbytes: int
    """Live bytes on the device."""
    event: int
    """Index of the event; -1 for a trace without allocations."""


def exact_peak(trace: Trace) -> Peak:
    """Returns the peak of live bytes on the device, without any rounding.

    Args:
        trace: The recording.

    Returns:
        The peak.
    """
    sizes: dict[int, int] = {}
    live, best = 0, Peak(0, -1)
    for i, (kind, subject) in enumerate(zip(trace.kinds, trace.subjects, strict=True)):
        if kind == WORKSPACE:
            if live + trace.workspaces[subject].nbytes > best.nbytes:
                best = Peak(live + trace.workspaces[subject].nbytes, i)
        elif kind in (ALLOC, FREE, RESIZE) and trace.storages[subject].place == "device":
            now = _size(trace, i)
            live += now - sizes.get(subject, 0)
            sizes[subject] = now
            if live > best.nbytes:
                best = Peak(live, i)
    return best


def exact_anatomy(trace: Trace, *, largest: int = 10) -> Anatomy:
    """Returns what lives at `exact_peak`.

    Args:
        trace: The recording.
        largest: How many of the largest tensors to name.

    Returns:
        The anatomy; its categories add up to the peak.
    """
    peak = exact_peak(trace)
    alive: dict[int, int] = {}
    for i in range(peak.event + 1):
        kind, subject = trace.kinds[i], trace.subjects[i]
        if kind == FREE:
            alive.pop(subject, None)
        elif kind in (ALLOC, RESIZE) and trace.storages[subject].place == "device":
            alive[subject] = _size(trace, i)
    tensors = [_tensor(trace.storages[i], nbytes, trace.storages[i].category) for i, nbytes in alive.items() if nbytes]
    if peak.event >= 0 and trace.kinds[peak.event] == WORKSPACE:
        work = trace.workspaces[trace.subjects[peak.event]]
        tensors.append(_tensor(work, work.nbytes, "temporaries"))
    by_category = dict.fromkeys(CATEGORIES, 0)
    by_block: dict[str, dict[str, int]] = {}
    for tensor in tensors:
        by_category[tensor.category] += tensor.nbytes
        share = by_block.setdefault(block_of(tensor.module), {})
        share[tensor.category] = share.get(tensor.category, 0) + tensor.nbytes
    assert sum(by_category.values()) == peak.nbytes
    first_seen = {block_of(row.module): -row.id for row in reversed(trace.storages)}
    order = sorted(by_block, key=lambda name: (name != OUTSIDE, -first_seen.get(name, 0)))
    return Anatomy(
        peak_allocated_bytes=peak.nbytes,
        bytes_by_category=by_category,
        largest=tuple(sorted(tensors, key=lambda tensor: -tensor.nbytes)[:largest]),
        blocks=tuple(
            BlockShare(name=name, size_bytes=sum(by_block[name].values()), bytes_by_category=by_block[name])
            for name in order
        ),
        rounding_bytes=0,
    )


def _size(trace: Trace, event: int) -> int:
    kind, subject = trace.kinds[event], trace.subjects[event]
    return trace.storages[subject].nbytes if kind == ALLOC else trace.values[event] if kind == RESIZE else 0


def _tensor(row: Storage | Workspace, nbytes: int, category: str) -> LiveTensor:
    return LiveTensor(
        size_bytes=nbytes, nbytes=nbytes, category=category, module=row.module, operator=row.operator, phase=row.phase
    )
