"""Predicted memory over the run as one self-contained HTML page: stacked categories, phases marked, values on hover.

The page holds its data, its styles and its script, and asks for nothing from anywhere.
"""

from __future__ import annotations

import bisect
import dataclasses
import html
import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from snugfit.report.estimate_card import recipe_in_words, short_operator, where_in_words
from snugfit.simulator.trace import FREE, MARK, Trace
from snugfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from snugfit.simulator.prediction import Estimate

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


def timeline_data(estimate: Estimate, *, points: int = 1000) -> TimelineData:
    """Returns what is to be drawn of an estimate.

    Args:
        estimate: The estimate.
        points: How many points at most.

    Returns:
        The data, thinned so that no peak is lost.
    """
    found = estimate.timeline(points=points)
    steps = _steps(estimate.trace)
    end = _end(estimate.trace)
    count = sum(event <= end for event in found.events)
    events = found.events[:count]
    labels = []
    for event in events:
        phase, operator, module = estimate.trace.where(event)
        labels.append((phase, short_operator(operator), module, steps(event)))
    totals = found.total_bytes[:count]
    return TimelineData(
        events=events,
        bytes_by_category={
            name: found.bytes_by_category[name][:count]
            for name in COLOURS
            if any(found.bytes_by_category.get(name, ()))
        },
        reserved_bytes=None if estimate.peak_reserved_bytes is None else found.reserved_bytes[:count],
        bands=_bands(events, labels, end),
        peak_point=max(range(len(totals)), key=totals.__getitem__, default=0),
        labels=tuple(labels),
        end=end,
    )


def _end(trace: Trace) -> int:
    """The last event that is more than a release."""
    return next((i for i in range(len(trace) - 1, -1, -1) if trace.kinds[i] != FREE), len(trace))


def _steps(trace: Trace) -> Any:
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


def timeline_page(estimate: Estimate) -> str:
    """Returns the page.

    Args:
        estimate: The estimate.

    Returns:
        A whole HTML document.
    """
    data = timeline_data(estimate)
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
        "limit": limit_of(estimate),
        "end": data.end,
    }
    page = resources.files("snugfit.report").joinpath("timeline.html").read_text(encoding="utf-8")
    fields = {
        "TITLE": html.escape(f"{estimate.title}: predicted memory"),
        "HEADING": html.escape(headline(estimate)),
        "SUBTITLE": "<br>".join(map(html.escape, subtitle(estimate))),
        "ROWS": _rows(estimate),
        # `</` must not end the script early, whatever a module is called.
        "DATA": json.dumps(script, separators=(",", ":")).replace("</", "<\\/"),
    }
    for name, value in fields.items():
        page = page.replace(f"@{name}@", value)
    return page


def headline(estimate: Estimate) -> str:
    """Returns the estimate in one line.

    Args:
        estimate: The estimate.

    Returns:
        Model, total and device.
    """
    where = "a CUDA card" if estimate.device == "all" else estimate.device
    return f"{estimate.title} needs {format_bytes(estimate.total_bytes)} on {where}"


def subtitle(estimate: Estimate) -> tuple[str, str]:
    """Returns what the estimate is of, in two lines.

    Args:
        estimate: The estimate.

    Returns:
        Batch, recipe and seconds; place of the peak.
    """
    how = "a hand-written step" if estimate.recipe is None else f"recipe: {recipe_in_words(estimate.recipe)}"
    parts = [f"Predicted. Batch of {estimate.batch_shape}", how]
    if estimate.step_seconds is not None:
        parts.append(f"{format_seconds(estimate.step_seconds)} a step")
    return "; ".join(parts) + ".", f"Peak in {where_in_words(estimate)}."


def limit_of(estimate: Estimate) -> dict[str, Any] | None:
    """Returns the memory of the one card that was asked for, context taken off.

    Args:
        estimate: The estimate.

    Returns:
        Its name and bytes; None for several cards or a device without limit.
    """
    from snugfit.devices import device_named

    if estimate.device in ("all", "cpu"):
        return None
    card = device_named(estimate.device)
    if card.memory_bytes is None:
        return None
    return {"name": card.name, "bytes": card.memory_bytes - (card.context_bytes or 0)}


def _rows(estimate: Estimate) -> str:
    rows = []
    for tensor in estimate.largest:
        colour = COLOURS[tensor.category]
        cells = (
            format_bytes(tensor.size_bytes),
            f'<i style="background:{colour}"></i>{html.escape(tensor.category.replace("_", " "))}',
            html.escape(short_operator(tensor.operator)),
            html.escape(tensor.module or "-"),
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "\n".join(rows)
