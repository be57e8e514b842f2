"""Memory over a run as a figure: stacked categories, phases marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from snugfit.report.ladder_figure import NoMatplotlibError
from snugfit.report.timeline import COLOURS, Drawing, TimelineData, timeline_page
from snugfit.units import GIB, KIB, MIB, format_bytes

_INK, _FAINT = "#1f2328", "#57606a"
_SHADES = {
    "build": "#f3f4f6",
    "load": "#f3f4f6",
    "forward": "#eef4fb",
    "backward": "#fdf1f5",
    "optimizer": "#fff6e0",
    "evaluation": "#eef8f3",
}
_SHORT = {"forward": "fwd", "backward": "bwd", "optimizer": "opt", "evaluation": "eval"}
_CHARACTER = 0.0068
"""Width of a character of a phase's name, as a share of the figure's width."""


ENDINGS = (".html", ".png")
"""Formats of a timeline's file."""


def write_timeline(drawing: Drawing, path: Path) -> None:
    """Writes the page or the figure.

    Args:
        drawing: The run.
        path: File to write; its ending is one of `ENDINGS`.

    Raises:
        NoMatplotlibError: A figure was asked for and matplotlib is not installed.
    """
    if path.suffix.lower() == ".html":
        path.write_text(timeline_page(drawing), encoding="utf-8")
    else:
        draw_timeline(drawing, path)


def draw_timeline(drawing: Drawing, path: Path) -> None:
    """Draws the figure and writes it.

    Args:
        drawing: The run.
        path: File to write; the ending says the format (png, svg).

    Raises:
        NoMatplotlibError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise NoMatplotlibError("a figure needs matplotlib: pip install 'snugfit[report]'") from None
    data = drawing.data
    figure = Figure(figsize=(12.5, 6.2), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.065, 0.115, 0.915, 0.675))
    highest = max(map(sum, zip(*data.bytes_by_category.values(), strict=True)), default=0)
    unit, factor = next(((name, size) for name, size in (("GiB", GIB), ("MiB", MIB)) if highest >= size), ("KiB", KIB))
    axes.stackplot(
        data.events,
        *[[size / factor for size in sizes] for sizes in data.bytes_by_category.values()],
        colors=[COLOURS[name] for name in data.bytes_by_category],
        labels=[name.replace("_", " ") for name in data.bytes_by_category],
        zorder=2,
        linewidth=0,
    )
    tallest = highest
    if data.reserved_bytes is not None:
        tallest = max(highest, *data.reserved_bytes)
        axes.plot(
            data.events, [size / factor for size in data.reserved_bytes], color=_INK, linewidth=1.1, zorder=3,
            label="reserved by the allocator",
        )  # fmt: skip
    if drawing.limit is not None and drawing.limit[1] < 1.6 * tallest:
        name, limit_bytes = drawing.limit
        tallest = max(tallest, limit_bytes)
        axes.axhline(
            limit_bytes / factor, color="#b42318", linewidth=1.3, linestyle=(0, (5, 3)), zorder=3,
            label=f"{name}: {format_bytes(limit_bytes)}",
        )  # fmt: skip
    axes.set_xlim(0, data.end)
    axes.set_ylim(0, 1.1 * tallest / factor)
    _phases(axes, data, data.end)
    _peak(axes, data, highest, factor, data.end)
    _dress(axes, unit)
    figure.text(0.012, 0.965, drawing.heading, fontsize=15, fontweight="bold", color=_INK, va="center")
    for i, line in enumerate(drawing.subtitle):
        figure.text(0.012, 0.928 - 0.027 * i, _shortened(line), fontsize=9.5, color=_FAINT, va="center")
    figure.legend(
        loc="lower left", bbox_to_anchor=(0.055, 0.0), ncols=9, frameon=False, fontsize=9, labelcolor=_INK,
        handlelength=1.2, columnspacing=1.4,
    )  # fmt: skip
    figure.savefig(path)


def _phases(axes: Any, data: TimelineData, end: int) -> None:
    """Shades the phases, names those that are wide enough, and marks where each step begins."""
    place = axes.get_xaxis_transform()
    steps = max((band.step for band in data.bands), default=0) + 1
    step = -1
    for band in data.bands:
        if band.phase in _SHADES:
            axes.axvspan(band.start, band.end, color=_SHADES[band.phase], linewidth=0, zorder=0)
        room = (band.end - band.start) / max(end, 1) / _CHARACTER
        name = next((name for name in (band.phase, _SHORT.get(band.phase)) if name and len(name) < room), None)
        if name is not None:
            middle = (band.start + band.end) / 2
            axes.text(middle, 1.015, name, transform=place, ha="center", va="bottom", fontsize=9, color=_FAINT)
        if band.step != step and band.phase not in ("build", "load"):
            step = band.step
            later = "second step, like all later ones" if steps == 2 else f"step {step + 1}"
            name = "first step" if step == 0 else later
            axes.axvline(band.start, color="#8c959f", linewidth=0.9, zorder=1, ymax=1.1, clip_on=False)
            axes.text(
                band.start + 0.004 * end, 1.065, name, transform=place, ha="left", va="bottom", fontsize=9.5,
                fontweight="bold", color=_INK,
            )  # fmt: skip


def _peak(axes: Any, data: TimelineData, highest: int, factor: int, end: int) -> None:
    if not data.events:
        return
    at = data.events[data.peak_point]
    axes.plot(at, highest / factor, "o", markersize=6, markerfacecolor="white", markeredgecolor=_INK, zorder=5)
    left = at > end / 2
    axes.annotate(
        f"peak {format_bytes(highest)}", (at, highest / factor), xytext=(-7 if left else 7, 8),
        textcoords="offset points", ha="right" if left else "left", va="bottom", fontsize=10, fontweight="bold", color=_INK,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.9, "pad": 2}, zorder=5,
    )  # fmt: skip


def _dress(axes: Any, unit: str) -> None:
    axes.set_ylabel(f"Memory ({unit})", color=_FAINT, fontsize=10)
    axes.set_xlabel("allocations and releases, in order", color=_FAINT, fontsize=9, loc="right", labelpad=2)
    axes.set_xticks([])
    axes.grid(axis="y", color="#e5e9ee", linewidth=0.8, zorder=1)
    axes.tick_params(axis="y", labelsize=9, colors=_FAINT, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#9ca3af")


def _shortened(text: str, longest: int = 170) -> str:
    return text if len(text) <= longest else text[: longest - 4].rstrip() + " ..."
