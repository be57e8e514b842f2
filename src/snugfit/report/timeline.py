"""Memory over a run, for drawing: categories, reserved bytes, phases, and what runs at each point.

Predicted (`estimate_card.py`) and measured (`profile_card.py`) runs are drawn alike, as a figure (`timeline_figure.py`) or
on the page (`page/`), which reads it from their JSON.
"""

from __future__ import annotations

import bisect
import dataclasses
from typing import Any

from snugfit.recording.allocator import AllocatorConfig
from snugfit.recording.anatomy import timeline
from snugfit.recording.trace import FREE, Trace
from snugfit.report.words import short_operator

COLOURS = {
    "weights": "#0072B2",
    "optimizer_state": "#E69F00",
    "inputs": "#7A828F",
    "gradients": "#CC79A7",
    "activations": "#009E73",
    "temporaries": "#56B4E9",
    "other": "#D55E00",
}
"""Category -> colour, from the bottom of the stack to its top; told apart by all common kinds of colour vision."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """A stretch of the run that belongs to one phase of one step."""

    start: int
    """Index of its first event."""
    end: int
    """Index after its last event."""
    phase: str
    """The phase."""
    step: int
    """The step, from 0."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """A run to be drawn, as a page or a figure, and what is said of it."""

    heading: str
    """The run in one line."""
    subtitle: tuple[str, ...]
    """What it is a run of, by lines."""
    limit: tuple[str, int] | None
    """Name and bytes of the card it should fit, if one was named."""
    events: tuple[int, ...]
    """Index of the event at each point."""
    bytes_by_category: dict[str, tuple[int, ...]]
    """Live bytes at each point, of the categories that ever have some, in the order of `COLOURS`."""
    reserved_bytes: tuple[int, ...] | None
    """Bytes in segments at each point; None on cpu."""
    bands: tuple[Band, ...]
    """The phases, in order and without gaps."""
    peak_point: int
    """Index of the highest point."""
    labels: tuple[tuple[str, str, str, int], ...]
    """Phase, operator, module and step at each point."""
    end: int
    """Index of the last event that is drawn: the end of the last step, before the run is taken down."""


def drawing_of(
    trace: Trace, config: AllocatorConfig | None, *, reserved: bool, limit: tuple[str, int] | None = None, **words: Any
) -> Drawing:
    """Returns the drawing of a run, thinned without losing a peak, and without the releases at its end.

    `reserved`: whether the device has segments. `limit`: name and bytes of the card it should fit.
    """
    found = timeline(trace, config, points=2000)
    begins = [mark.event for mark in found.marks]
    end = _end(trace)
    count = sum(event <= end for event in found.events)
    events = found.events[:count]
    labels = []
    for event in events:
        phase, operator, module = trace.where(event)
        at = bisect.bisect_right(begins, event) - 1
        labels.append((phase, short_operator(operator), module, found.marks[at].step if at >= 0 else 0))
    totals = found.total_bytes[:count]
    sizes = {name: found.bytes_by_category[name] for name in COLOURS}
    return Drawing(
        events=events,
        bytes_by_category={name: row[:count] for name, row in sizes.items() if any(row)},
        reserved_bytes=found.reserved_bytes[:count] if reserved else None,
        bands=_bands(events, labels, end),
        peak_point=max(range(len(totals)), key=totals.__getitem__, default=0),
        labels=tuple(labels),
        end=end,
        limit=limit,
        **words,
    )


def _end(trace: Trace) -> int:
    """The last event that is not a release."""
    return next((i for i in range(len(trace) - 1, -1, -1) if trace.kinds[i] != FREE), len(trace))


def _bands(events: tuple[int, ...], labels: list[tuple[str, str, str, int]], end: int) -> tuple[Band, ...]:
    bands: list[Band] = []
    for i, (event, (phase, _, _, step)) in enumerate(zip(events, labels, strict=True)):
        last = bands[-1] if bands else None
        until = events[i + 1] if i + 1 < len(events) else end
        if last is not None and (last.phase, last.step) == (phase, step):
            bands[-1] = dataclasses.replace(last, end=until)
        else:
            bands.append(Band(start=event if bands else 0, end=until, phase=phase, step=step))
    return tuple(bands)


_POINTS = 240
"""Of a timeline in a document."""


def timeline_to_plain(drawing: Drawing) -> dict[str, Any]:
    """Returns the drawing as plain data, in columns with a value for each point; a few hundred of them.

    What runs at a point is an index into `phases`, `operators` and `modules`.
    """
    kept = _kept(drawing)
    rows = [drawing.labels[point] for point in kept]
    phase, operator, module, step = zip(*rows, strict=True) if rows else ((), (), (), ())
    phases, operators, modules = (list(dict.fromkeys(names)) for names in (phase, operator, module))
    reserved = drawing.reserved_bytes
    return {
        "end": drawing.end,
        "peak": kept.index(drawing.peak_point) if kept else None,
        "events": [drawing.events[point] for point in kept],
        "bytes_by_category": {
            name: [sizes[point] for point in kept] for name, sizes in drawing.bytes_by_category.items()
        },
        "reserved_bytes": None if reserved is None else [reserved[point] for point in kept],
        "phases": phases,
        "operators": operators,
        "modules": modules,
        "phase": [phases.index(name) for name in phase],
        "operator": [operators.index(name) for name in operator],
        "module": [modules.index(name) for name in module],
        "step": list(step),
    }


def _kept(drawing: Drawing) -> list[int]:
    """Points that are enough: the highest of each stretch, the peak among them, and those at which a phase begins."""
    totals = list(map(sum, zip(*drawing.bytes_by_category.values(), strict=True)))
    stretch = max(1, -(-len(totals) // _POINTS))
    kept = {
        max(range(first, min(first + stretch, len(totals))), key=totals.__getitem__)
        for first in range(0, len(totals), stretch)
    }
    begins = {bisect.bisect_left(drawing.events, band.start) for band in drawing.bands[:_POINTS]}
    return sorted(point for point in kept | begins | {drawing.peak_point} if point < len(totals))
