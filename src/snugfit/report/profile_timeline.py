"""What was measured over the watched steps, drawn like a predicted timeline: the same page, colours and phases."""

from __future__ import annotations

import dataclasses
import html
import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.errors import InputError
from snugfit.report.timeline import COLOURS, TimelineData, timeline_data
from snugfit.simulator.anatomy import Timeline, timeline
from snugfit.simulator.trace import Trace
from snugfit.units import format_bytes

if TYPE_CHECKING:
    from snugfit.measure.profile import Profile

ENDINGS = (".html", ".png")
"""Formats of the file."""


class _Drawn:
    """A profile as `timeline_data` wants to see it."""

    def __init__(self, profile: Profile) -> None:
        self.trace: Trace = profile.trace
        self.peak_reserved_bytes = profile.reserved_peak_bytes
        self._config = profile.config

    def timeline(self, *, points: int = 1000) -> Timeline:
        return timeline(self.trace, self._config, points=points)


def write_profile_timeline(profile: Profile, path: Path) -> None:
    """Draws live memory over the watched steps.

    Args:
        profile: The profile.
        path: File to write, `.html` or `.png`.

    Raises:
        InputError: A figure was asked for and matplotlib is not installed.
    """
    drawn: Any = _Drawn(profile)
    data = timeline_data(drawn)
    if path.suffix == ".png":
        _figure(profile, data, path)
    else:
        path.write_text(_page(profile, data), encoding="utf-8")


def _texts(profile: Profile) -> tuple[str, str]:
    where = f"{profile.peak_operator} of {profile.peak_module}" if profile.peak_module else profile.peak_operator
    heading = f"{profile.script} took {format_bytes(profile.allocator_peak_bytes)} on {profile.device}"
    return (
        heading,
        f"Measured over {profile.steps} steps. Peak in {profile.peak_phase or 'no phase'}, at {where or '-'}.",
    )


def _page(profile: Profile, data: TimelineData) -> str:
    heading, subtitle = _texts(profile)
    script = {
        "events": data.events,
        "categories": [
            {"name": name.replace("_", " "), "colour": COLOURS[name], "bytes": sizes}
            for name, sizes in data.bytes_by_category.items()
        ],
        "reserved": data.reserved_bytes,
        "bands": [dataclasses.asdict(band) for band in data.bands],
        "peak": data.peak_point,
        "labels": data.labels,
        "limit": None,
        "end": data.end,
    }
    rows = []
    for tensor in profile.anatomy.largest:
        category = html.escape(tensor.category.replace("_", " "))
        cells = (
            format_bytes(tensor.size_bytes),
            f'<i style="background:{COLOURS[tensor.category]}"></i>{category}',
            html.escape(tensor.operator),
            html.escape(tensor.module or "-"),
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    fields = {
        "TITLE": html.escape(f"{profile.script}: measured memory"),
        "HEADING": html.escape(heading),
        "SUBTITLE": html.escape(subtitle),
        "ROWS": "\n".join(rows),
        # `</` must not end the script early, whatever a module is called.
        "DATA": json.dumps(script, separators=(",", ":")).replace("</", "<\\/"),
    }
    page = resources.files("snugfit.report").joinpath("timeline.html").read_text(encoding="utf-8")
    for name, value in fields.items():
        page = page.replace(f"@{name}@", value)
    return page


def _figure(profile: Profile, data: TimelineData, path: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("a figure needs matplotlib: pip install matplotlib, or write an .html file.") from None
    figure = Figure(figsize=(12.5, 6.2), dpi=120, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.stackplot(
        data.events,
        *[[size / 2**20 for size in sizes] for sizes in data.bytes_by_category.values()],
        colors=[COLOURS[name] for name in data.bytes_by_category],
        labels=[name.replace("_", " ") for name in data.bytes_by_category],
        linewidth=0,
    )
    for band in data.bands:
        axes.axvline(band.start, color="#9aa0a6", linewidth=0.5)
        if band.end - band.start < data.end / 50:
            continue  # too narrow for its name
        axes.text(band.start, 1.005, f" {band.phase}", transform=axes.get_xaxis_transform(), fontsize=7, rotation=40)
    axes.set_xlim(0, data.end)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("allocations and releases, in order")
    axes.set_ylabel("MiB")
    axes.legend(loc="upper left", fontsize=8)
    figure.suptitle("\n".join(_texts(profile)), x=0.01, ha="left", fontsize=10)
    figure.savefig(path)
