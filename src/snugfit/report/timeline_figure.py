"""Memory over a run as a figure: stacked categories, phases marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from snugfit.report.figure import FAINT, INK, WARNING, clear_axes, heading, legend, new_figure, unit_for
from snugfit.report.timeline import COLOURS, Drawing
from snugfit.units import KIB, format_bytes

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


def write_timeline(path: Path, drawing: Callable[[], Drawing], document: Callable[[], Mapping[str, Any]]) -> None:
    """Writes the page of an estimate or a profile, or the figure of its memory, by the ending of the file."""
    if path.suffix.lower() == ".html":
        from snugfit.report.page import page, shown

        path.write_text(page([shown(document(), name="")]), encoding="utf-8")
    else:
        draw_timeline(drawing(), path)


def draw_timeline(drawing: Drawing, path: Path) -> None:
    """Draws the figure and writes it; the ending says the format (png, svg)."""
    figure = new_figure(12.5, 6.2)
    axes = figure.add_axes((0.065, 0.115, 0.915, 0.675))
    highest = max(map(sum, zip(*drawing.bytes_by_category.values(), strict=True)), default=0)
    unit, factor = unit_for(max(highest, KIB))
    axes.stackplot(
        drawing.events,
        *[[size / factor for size in sizes] for sizes in drawing.bytes_by_category.values()],
        colors=[COLOURS[name] for name in drawing.bytes_by_category],
        labels=[name.replace("_", " ") for name in drawing.bytes_by_category],
        zorder=2,
        linewidth=0,
    )
    tallest = highest
    if drawing.reserved_bytes is not None:
        tallest = max(highest, *drawing.reserved_bytes)
        axes.plot(
            drawing.events, [size / factor for size in drawing.reserved_bytes], color=INK, linewidth=1.1, zorder=3,
            label="reserved by the allocator",
        )  # fmt: skip
    if drawing.limit is not None and drawing.limit[1] < 1.6 * tallest:
        name, limit_bytes = drawing.limit
        tallest = max(tallest, limit_bytes)
        axes.axhline(
            limit_bytes / factor, color=WARNING, linewidth=1.3, linestyle=(0, (5, 3)), zorder=3,
            label=f"{name}: {format_bytes(limit_bytes)}",
        )  # fmt: skip
    axes.set_xlim(0, drawing.end)
    axes.set_ylim(0, 1.1 * tallest / factor)
    _phases(axes, drawing, drawing.end)
    _peak(axes, drawing, highest, factor, drawing.end)
    axes.set_ylabel(f"Memory ({unit})", color=FAINT, fontsize=10)
    axes.set_xlabel("allocations and releases, in order", color=FAINT, fontsize=9, loc="right", labelpad=2)
    axes.set_xticks([])
    clear_axes(axes, along="y", without=("top", "right", "left"))
    heading(figure, [drawing.heading, *drawing.subtitle])
    legend(figure, 0.055)
    figure.savefig(path)


def _phases(axes: Any, drawing: Drawing, end: int) -> None:
    """Shades the phases, names those that are wide enough, and marks where each step begins."""
    place = axes.get_xaxis_transform()
    steps = max((band.step for band in drawing.bands), default=0) + 1
    step = -1
    for band in drawing.bands:
        if band.phase in _SHADES:
            axes.axvspan(band.start, band.end, color=_SHADES[band.phase], linewidth=0, zorder=0)
        room = (band.end - band.start) / max(end, 1) / _CHARACTER
        name = next((name for name in (band.phase, _SHORT.get(band.phase)) if name and len(name) < room), None)
        if name is not None:
            middle = (band.start + band.end) / 2
            axes.text(middle, 1.015, name, transform=place, ha="center", va="bottom", fontsize=9, color=FAINT)
        if band.step != step and band.phase not in ("build", "load"):
            step = band.step
            later = "second step, like all later ones" if steps == 2 else f"step {step + 1}"
            name = "first step" if step == 0 else later
            axes.axvline(band.start, color="#8c959f", linewidth=0.9, zorder=1, ymax=1.1, clip_on=False)
            axes.text(
                band.start + 0.004 * end, 1.065, name, transform=place, ha="left", va="bottom", fontsize=9.5,
                fontweight="bold", color=INK,
            )  # fmt: skip


def _peak(axes: Any, drawing: Drawing, highest: int, factor: int, end: int) -> None:
    if not drawing.events:
        return
    at = drawing.events[drawing.peak_point]
    axes.plot(at, highest / factor, "o", markersize=6, markerfacecolor="white", markeredgecolor=INK, zorder=5)
    left = at > end / 2
    axes.annotate(
        f"peak {format_bytes(highest)}", (at, highest / factor), xytext=(-7 if left else 7, 8),
        textcoords="offset points", ha="right" if left else "left", va="bottom", fontsize=10, fontweight="bold", color=INK,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.9, "pad": 2}, zorder=5,
    )  # fmt: skip
