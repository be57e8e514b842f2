"""What a large operator takes, found without running it at its size: it is run at smaller ones, and a line is proved.

One size (the batch, the rows, the vocabulary) is made smaller wherever it occurs among the arguments, and four such calls
say whether it lies on a straight line (`size_line.py`).

The first dimension (samples or rows) is tried first: kernels go through it piece by piece. Other dimensions can hide a
choice of kernel between the small sizes and the large one (attention takes other blocks from 768 queries on), so they are
tried only where the operator is too large to be run as it is within seconds. Where nothing gives a line, it is run as it is
if the machine's memory allows; otherwise the answer says that it is not proved.

An operator on lists of tensors takes them one after the other on a processor: it is asked of each layout once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from snugfit import private_torch
from snugfit.operators import operator_truth
from snugfit.operators.operator_call import Call, Layout
from snugfit.operators.operator_truth import CannotRun, Result, Truth
from snugfit.operators.size_line import SMALLEST, on_line, sizes_to_run
from snugfit.private_torch import fake_tensors
from snugfit.process_memory import free_host_bytes
from snugfit.units import MIB

_DEEPEST = 3
_SHARE_OF_MEMORY = 0.5
"""Part of the free memory that a call may take, its inner memory taken to be as much as its arguments and results."""


class Size(NamedTuple):
    """How large a call is: floating-point operations and bytes."""

    flops: float
    """Floating-point operations."""
    nbytes: float
    """Bytes of arguments and results."""

    def times(self, share: float) -> Size:
        """Returns the size of a call that is smaller by a factor; work that grows faster shrinks by more than this."""
        return Size(self.flops * share, self.nbytes * share)

    def within(self, limit: Size) -> bool:
        """Whether both numbers are within a limit."""
        return self.flops <= limit.flops and self.nbytes <= limit.nbytes

    def share_within(self, limit: Size) -> float:
        """Returns the factor that brings the call to a limit; above 1 where it is smaller already."""
        return min(limit.flops / max(self.flops, 1), limit.nbytes / max(self.nbytes, 1))


AS_IT_IS = Size(3e9, 48 * MIB)
"""The largest call that is run at its own size without asking for more: a few hundredths of a second."""
SMALL = Size(1e9, 12 * MIB)
"""The largest of the smaller calls."""
WITHIN_SECONDS = 1e11
"""Floating-point operations of a call that is run at its own size rather than shrunk in a dimension that may mislead."""

Run = Callable[[Call], Truth]


class Found(NamedTuple):
    """An answer, and how sure it is."""

    truth: Truth
    """What the operator takes."""
    proved: bool = True
    """False where it was neither run as it is, nor lay on a line."""


def find(call: Call, size: Size, run: Run = operator_truth.run, *, free_bytes: int | None = None) -> Found:
    """Finds out what an operator takes; raises `CannotRun` where it refuses to be run by itself.

    `free_bytes`: memory that the machine can spare; None: it is asked.
    """
    free = (free_host_bytes() or 0) if free_bytes is None else free_bytes
    has_room = 2 * size.nbytes <= _SHARE_OF_MEMORY * free
    proved = _proved(call, size, run, first_only=True)
    if proved is None and not (has_room and size.flops <= WITHIN_SECONDS):
        proved = _proved(call, size, run, first_only=False)
    if proved is not None:
        return Found(proved)
    if has_room:
        return Found(run(call))
    return Found(_guessed(call, size, run), proved=False)


def _proved(call: Call, size: Size, run: Run, *, first_only: bool, depth: int = 0) -> Truth | None:
    if size.within(AS_IT_IS):
        return run(call)
    if depth == _DEEPEST:
        return None
    parts = _one_by_one(call)
    if parts:
        return _of_parts(call, parts, size, run, depth)
    for number in _candidates(call, first_only=first_only):
        truth = _along(call, number, size, run, depth, one_only=first_only)
        if truth is not None:
            return truth
    return None


# -- one size after the other


def _along(call: Call, number: int, size: Size, run: Run, depth: int, *, one_only: bool) -> Truth | None:
    """What a call takes, if that is a straight line in one of its sizes; other sizes may be made smaller as well."""
    points = sizes_to_run(number, size.share_within(SMALL))
    if points is None or (one_only and not size.times(points[0] / number).within(AS_IT_IS)):
        return None
    truths = []
    for point in points:
        smaller = with_size(call, number, point)
        if smaller is None or not _fits_together(smaller):
            return None
        try:
            truth = _proved(smaller, size.times(point / number), run, first_only=False, depth=depth + 1)
        except CannotRun:
            return None
        if truth is None:
            return None
        truths.append(truth)
    return on_line(points, truths, number)


def with_size(call: Call, number: int, other: int) -> Call | None:
    """Returns a call with one size replaced wherever it occurs; None where strides do not follow from the size."""
    broken = False

    def change(value: Any) -> Any:
        nonlocal broken
        if isinstance(value, Layout):
            changed = _resized(value, number, other)
            broken = broken or changed is None
            return changed
        return other if type(value) is int and value == number else value

    changed = call.changed(change)
    return None if broken else changed


def _resized(layout: Layout, number: int, other: int) -> Layout | None:
    """Changes a size, and with it the strides of the dimensions outside of it."""
    stride = list(layout.stride)
    for dimension, size in enumerate(layout.shape):
        if size != number or not layout.stride[dimension]:
            continue
        inner = layout.stride[dimension] * number
        for outer, step in enumerate(layout.stride):
            if outer == dimension or step < inner:
                continue
            if step % inner:
                return None
            stride[outer] = stride[outer] // number * other
    shape = tuple(other if size == number else size for size in layout.shape)
    return layout._replace(shape=shape, stride=tuple(stride))


def _candidates(call: Call, *, first_only: bool) -> list[int]:
    """The sizes that can be made smaller: first dimensions, then the others from the outside in.

    None where the forward pass left a workspace, whose size only the library that made it could tell: kernels do not check
    it, and read beyond its end (oneDNN's LSTM).
    """
    layouts = [layout for layout in call.layouts() if layout.shape]
    if not layouts or any(argument.name == "workspace" for argument in call.operator._schema.arguments):
        return []
    largest = max(layouts, key=lambda layout: layout.nbytes)
    first = [layouts[0].shape[0], largest.shape[0]]
    others = [] if first_only else [size for layout in (layouts[0], largest, *layouts) for size in layout.shape[1:]]
    return [size for size in dict.fromkeys((*first, *others)) if size >= SMALLEST]


def _fits_together(call: Call) -> bool:
    """Whether the fake version accepts these arguments; real kernels do not check all of them."""
    with private_torch.nothing_above(call.gradients):
        mode = fake_tensors.new_fake_mode()
        try:
            with mode:
                args, kwargs = call.on(torch.device("cpu"))
                call.operator(*args, **kwargs)
        except Exception:
            return False
    return True


# -- lists of tensors


def _one_by_one(call: Call) -> list[Call]:
    """Returns a call for each position of the lists that an operator goes through; none where it takes no such lists."""
    if call.operator.namespace != "aten" or not call.operator._opname.startswith(("_foreach_", "_fused_")):
        return []
    lists = [value for value in call.arguments if isinstance(value, tuple) and not isinstance(value, Layout)]
    lengths = {len(value) - 1 for value in lists if any(isinstance(part, Layout) for part in value[1:])}
    if len(lengths) != 1 or (count := lengths.pop()) < 2:
        return []

    def at(value: Any, place: int) -> Any:
        whole = isinstance(value, tuple) and not isinstance(value, Layout) and len(value) - 1 == count
        return (value[0], value[1 + place]) if whole else value

    return [
        call._replace(
            arguments=tuple(at(value, place) for value in call.arguments),
            named=tuple((name, at(value, place)) for name, value in call.named),
        )
        for place in range(count)
    ]


def _of_parts(call: Call, parts: Sequence[Call], size: Size, run: Run, depth: int) -> Truth | None:
    total = max(1, sum(_span(part) for part in parts))
    known: dict[Call, Truth] = {}
    truths = []
    for part in parts:
        plain = _renumbered(part)
        if plain not in known:
            found = _proved(plain, size.times(_span(part) / total), run, first_only=True, depth=depth + 1)
            if found is None:
                return None
            known[plain] = found
        truths.append(known[plain])
    return together(truths)


def _span(call: Call) -> int:
    return sum(layout.nbytes for layout in call.layouts())


def _renumbered(call: Call) -> Call:
    """The same call with storages numbered anew, so that equal layouts give equal calls."""
    numbers: dict[int, int] = {}

    def change(value: Any) -> Any:
        if isinstance(value, Layout):
            return value._replace(storage=numbers.setdefault(value.storage, len(numbers)))
        return value

    return call.changed(change)


def together(truths: Sequence[Truth]) -> Truth:
    """Returns what several calls take one after the other, when all results stay."""
    peaks, order, results = [0], list[int](), list[Result]()
    for truth in truths:
        peaks[-1] = max(peaks[-1], truth.peaks[0])
        peaks.extend(truth.peaks[1:])
        order.extend(len(results) + number for number in truth.order)
        behind = len(results)
        results.extend(one._replace(shares=one.shares + behind if one.shares >= 0 else -1) for one in truth.results)
    return Truth(tuple(peaks), tuple(order), tuple(results), sum(truth.seconds for truth in truths))


# -- where nothing is proved


def _guessed(call: Call, size: Size, run: Run) -> Truth:
    """Scales up what a smaller call takes, marked as not proved."""
    for number in _candidates(call, first_only=False):
        points = sizes_to_run(number, size.share_within(SMALL))
        smaller = with_size(call, number, points[0]) if points else None
        if points and smaller is not None and _fits_together(smaller):
            truth = run(smaller)
            peaks = tuple(peak * number // points[0] for peak in truth.peaks)
            return truth._replace(peaks=peaks, results=(), seconds=truth.seconds * number / points[0])
    return Truth((0,), (), ())
