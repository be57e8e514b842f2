"""Memory over a run as one self-contained HTML page: stacked categories, phases marked, values on hover.

Predicted (`estimate_timeline.py`) and measured (`profile_timeline.py`) runs are drawn alike. The page holds its data, its
styles and its script, and asks for nothing from anywhere.
"""

from __future__ import annotations

import bisect
import dataclasses
import html
import json
from collections.abc import Callable, Sequence
from importlib import resources

from snugfit.recording.anatomy import LiveTensor, Timeline
from snugfit.recording.trace import FREE, MARK, Trace
from snugfit.report.words import short_operator
from snugfit.units import format_bytes

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
class TimelineData:
    """What the page and the figure draw."""

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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """A run to be drawn, and what is said of it."""

    title: str
    """Title of the page."""
    heading: str
    """The run in one line."""
    subtitle: tuple[str, ...]
    """What it is a run of, by lines."""
    data: TimelineData
    """Its bytes."""
    largest: Sequence[LiveTensor]
    """The largest tensors alive at the peak."""
    limit: tuple[str, int] | None = None
    """Name and bytes of the card it should fit, if one was named."""


def timeline_data(trace: Trace, found: Timeline, *, reserved: bool) -> TimelineData:
    """Returns what is to be drawn of a run.

    Args:
        trace: The run's events.
        found: Its bytes at some of them.
        reserved: Whether the device has segments.

    Returns:
        The data, without what happens while the run is taken down.
    """
    steps = _steps(trace)
    end = _end(trace)
    count = sum(event <= end for event in found.events)
    events = found.events[:count]
    labels = []
    for event in events:
        phase, operator, module = trace.where(event)
        labels.append((phase, short_operator(operator), module, steps(event)))
    totals = found.total_bytes[:count]
    return TimelineData(
        events=events,
        bytes_by_category={
            name: found.bytes_by_category[name][:count]
            for name in COLOURS
            if any(found.bytes_by_category.get(name, ()))
        },
        reserved_bytes=found.reserved_bytes[:count] if reserved else None,
        bands=_bands(events, labels, end),
        peak_point=max(range(len(totals)), key=totals.__getitem__, default=0),
        labels=tuple(labels),
        end=end,
    )


def _end(trace: Trace) -> int:
    """The last event that is more than a release."""
    return next((i for i in range(len(trace) - 1, -1, -1) if trace.kinds[i] != FREE), len(trace))


def _steps(trace: Trace) -> Callable[[int], int]:
    marks = [i for i, kind in enumerate(trace.kinds) if kind == MARK]

    def step(event: int) -> int:
        at = bisect.bisect_right(marks, event) - 1
        return trace.values[marks[at]] >> 1 if at >= 0 else 0

    return step


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


def timeline_page(drawing: Drawing) -> str:
    """Returns the page.

    Args:
        drawing: The run.

    Returns:
        A whole HTML document.
    """
    data = drawing.data
    script = {
        "events": data.events,
        "categories": [
            {"name": name.replace("_", " "), "colour": COLOURS[name], "bytes": values}
            for name, values in data.bytes_by_category.items()
        ],
        "reserved": data.reserved_bytes,
        "bands": [dataclasses.asdict(band) for band in data.bands],
        "peak": data.peak_point,
        "labels": data.labels,
        "limit": None if drawing.limit is None else dict(zip(("name", "bytes"), drawing.limit, strict=True)),
        "end": data.end,
    }
    page = resources.files("snugfit.report").joinpath("timeline.html").read_text(encoding="utf-8")
    fields = {
        "TITLE": html.escape(drawing.title),
        "HEADING": html.escape(drawing.heading),
        "SUBTITLE": "<br>".join(map(html.escape, drawing.subtitle)),
        "ROWS": "\n".join(map(_row, drawing.largest)),
        # `</` must not end the script early, whatever a module is called.
        "DATA": json.dumps(script, separators=(",", ":")).replace("</", "<\\/"),
    }
    for name, value in fields.items():
        page = page.replace(f"@{name}@", value)
    return page


def _row(tensor: LiveTensor) -> str:
    colour = COLOURS[tensor.category]
    cells = (
        format_bytes(tensor.size_bytes),
        f'<i style="background:{colour}"></i>{html.escape(tensor.category.replace("_", " "))}',
        html.escape(short_operator(tensor.operator)),
        html.escape(tensor.module or "-"),
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
