"""Four smaller sizes of a call, and whether what it takes at them lies on a straight line that leads to the large one.

Kernels take memory in straight lines of a size, as long as no block, thread or choice of kernel is on the way. So four sizes
are run: a line goes through the largest and the smallest, and those between must lie on it, for every number that is told of
the run. The four leave the same remainder by blocks of up to 64, and are larger than the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from snugfit.operators.operator_truth import Result, Truth

_TOLERANCE = 0.0005
"""Share by which a point may lie beside the line: blocks are rounded up to cache lines."""
_TOLERANCE_BYTES = 256
_SPREAD = 0.6
"""The smallest size is at most this part of the largest: points that lie close say little of what is far away."""
_BLOCKS = (64, 32, 16, 8, 4, 2, 1)
SMALLEST = 8
"""Sizes under this are left as they are."""
_FAR = 64
"""Sizes of rows that are far from the choices kernels make for few of them."""


def sizes_to_run(number: int, share: float) -> tuple[int, ...] | None:
    """Returns four smaller sizes, the largest first, about `share` of the large one; None where there are not four."""
    far = number >= 8 * _FAR
    least = max(torch.get_num_threads() + 1, _FAR if far else 1)
    most = number / 2 if number >= 2 * SMALLEST else number * 3 / 4
    highest = int(min(most, max(number * share, 4 * least if far else 2 * least + 2)))
    for block in _BLOCKS:
        points: list[int] = []
        for part in (1.0, 0.75, 0.5, 0.25):
            point = max(least, int(highest * part))
            point += (number - point) % block if part < 0.5 else -((point - number) % block)
            if least <= point <= highest and point not in points:
                points.append(point)
        if len(points) == 4 and points[-1] <= _SPREAD * points[0]:
            return tuple(points)
    return None


def on_line(points: Sequence[int], truths: Sequence[Truth], number: int) -> Truth | None:
    """Returns what a call takes at a large size, if the truths at smaller ones lie on a line; else None.

    `points`: the smaller sizes, from the largest to the smallest.
    """
    first = truths[0]
    forms = {(len(t.peaks), t.order, tuple((len(r.shape), r.dtype, r.shares) for r in t.results)) for t in truths}
    if len(forms) != 1:
        return None
    step = points[0] - points[-1]

    def line(values: Sequence[int], *, exact: bool = True) -> int:
        slope = (values[0] - values[-1]) / step
        for point, value in zip(points, values, strict=True):
            aside = abs(values[-1] + slope * (point - points[-1]) - value)
            if aside > (0.01 if exact else max(_TOLERANCE_BYTES, _TOLERANCE * value)):
                raise _NoLine
        there = round(values[-1] + slope * (number - points[-1]))
        if there < 0:
            raise _NoLine
        return there

    def lines(rows: Sequence[Sequence[int]], *, exact: bool = True) -> tuple[int, ...]:
        return tuple(line(values, exact=exact) for values in zip(*rows, strict=True))

    try:
        peaks = lines([t.peaks for t in truths], exact=False)
        results = []
        for rows in zip(*(t.results for t in truths), strict=True):
            shape, stride = lines([r.shape for r in rows]), lines([r.stride for r in rows])
            results.append(Result(shape, stride, rows[0].dtype, line([r.nbytes for r in rows]), rows[0].shares))
    except _NoLine:
        return None
    # Time is no line to the byte: it grows with the size.
    return Truth(peaks, first.order, tuple(results), first.seconds * number / points[0])


class _NoLine(Exception):
    pass
