"""The ladder as one figure: memory, time and accuracy of each rung, side by side, coloured by fidelity."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snugfit.errors import SnugfitError
from snugfit.units import GIB, KIB, MIB, format_bytes, format_seconds

PEAKS = ("peak_tensor_bytes", "peak_reserved_bytes")
"""The one number that stands for a rung's memory: tensors on the CPU; on CUDA what the allocator took, as in the guides."""


def peak_bytes(rung: Mapping[str, Any]) -> int | None:
    """Returns the peak of a rung: measured, or predicted for one that was not trained.

    Args:
        rung: An entry of `ladder --json`.

    Returns:
        Bytes, or None for a rung that failed.
    """
    measured = rung["measured"] or {}
    found = [measured[name] for name in PEAKS if measured.get(name) is not None]
    if found:
        return int(found[0])
    predicted = rung.get("predicted") or {}
    total = predicted.get("total_bytes") if rung.get("error") is None and rung["measured"] is None else None
    return None if total is None else int(total)


_COLOURS = {"plain": "#8a8f98", "exact": "#009E73", "rounding": "#0072B2", "different": "#E69F00"}
"""Fidelity -> colour; told apart by all common kinds of colour vision (Okabe and Ito)."""

_LABELS = {
    "plain": "first rung: plain training",
    "exact": "exact: the same update",
    "rounding": "rounding: fewer bits somewhere",
    "different": "different: another algorithm or batch",
}
_TIMES = "\N{MULTIPLICATION SIGN}"
_INK, _FAINT = "#1f2328", "#6b7280"


class NoMatplotlibError(SnugfitError):
    """Figures need matplotlib, which is not installed."""


def draw_ladder(rungs: Sequence[Mapping[str, Any]], *, title: str, paths: Sequence[Path]) -> None:
    """Draws the figure and writes it.

    Args:
        rungs: Entries of `ladder --json`, in order; a failed one has an `error` and no `measured`.
        title: One line: model, data, device.
        paths: Files to write; the ending says the format (png, svg).

    Raises:
        NoMatplotlibError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise NoMatplotlibError("a figure needs matplotlib: pip install 'snugfit[report]'") from None
    figure = Figure(figsize=(12.5, 2.05 + 0.62 * len(rungs)), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    height = figure.get_figheight()
    memory, seconds, accuracy = figure.subplots(
        1, 3, sharey=True, gridspec_kw={"width_ratios": [3.0, 1.5, 1.5], "wspace": 0.07}
    )
    figure.subplots_adjust(left=0.235, right=0.975, top=1 - 1.22 / height, bottom=0.65 / height)
    kinds = [_kind(rung, first=at == 0) for at, rung in enumerate(rungs)]
    _memory_panel(memory, rungs, kinds)
    _seconds_panel(seconds, rungs, kinds)
    _accuracy_panel(accuracy, rungs, kinds)
    _rung_labels(memory, rungs)
    _heading(figure, rungs, kinds, title, height)
    for path in paths:
        figure.savefig(path)


def _kind(rung: Mapping[str, Any], *, first: bool) -> str:
    return "plain" if first else str(rung["fidelity"]["level"])


def _memory_panel(axes: Any, rungs: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> None:
    sizes = [peak_bytes(rung) for rung in rungs]
    known = [size for size in sizes if size is not None]
    largest = max(known, default=1)
    unit, factor = next(
        ((name, size) for name, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)) if largest >= size), ("bytes", 1)
    )
    reference = sizes[0] if sizes else None
    for at, (rung, size, kind) in enumerate(zip(rungs, sizes, kinds, strict=True)):
        if size is None:
            _note_failure(axes, at, rung, largest / factor)
            continue
        axes.barh(at, size / factor, height=0.62, color=_COLOURS[kind], zorder=2)
        text = f" {format_bytes(size)}"
        if reference is not None and at > 0:
            text += f"   {_times(reference / size)}"
        axes.text(size / factor, at, text, va="center", ha="left", fontsize=10, color=_INK)
    axes.set_xlim(0, largest / factor * 1.32)
    _dress(axes, f"Peak memory ({unit})")


def _times(ratio: float) -> str:
    if ratio >= 1:
        return f"{ratio:.1f}{_TIMES} less" if ratio < 9.95 else f"{ratio:.0f}{_TIMES} less"
    return f"{1 / ratio:.1f}{_TIMES} more"


def _seconds_panel(axes: Any, rungs: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> None:
    known = [rung["seconds"] for rung in rungs if rung["seconds"] is not None]
    longest = max(known, default=1.0)
    minutes = longest >= 600
    for at, (rung, kind) in enumerate(zip(rungs, kinds, strict=True)):
        if rung["seconds"] is None:
            continue
        length = rung["seconds"] / (60 if minutes else 1)
        axes.barh(at, length, height=0.62, color=_COLOURS[kind], zorder=2)
        axes.text(length, at, f" {format_seconds(rung['seconds'])}", va="center", ha="left", fontsize=10, color=_INK)
    axes.set_xlim(0, longest / (60 if minutes else 1) * 1.42)
    _dress(axes, "Training time (minutes)" if minutes else "Training time (seconds)")


def _accuracy_panel(axes: Any, rungs: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> None:
    found = [_accuracy(rung) for rung in rungs]
    known = [100 * value for value in found if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 100.0)
    span = max(high - low, 4.0)
    left = max(0.0, low - 0.35 * span)
    right = high + 0.75 * span
    if found and found[0] is not None:
        axes.axvline(100 * found[0], color=_COLOURS["plain"], linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    for at, (value, kind) in enumerate(zip(found, kinds, strict=True)):
        if value is None:
            continue
        axes.plot(100 * value, at, "o", markersize=9, color=_COLOURS[kind], zorder=3)
        axes.text(
            100 * value + 0.07 * (right - left), at, f"{value:.1%}", va="center", ha="left", fontsize=10, color=_INK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0}, zorder=2,
        )  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_xticks([tick for tick in axes.get_xticks() if left <= tick <= min(right, 100)])
    axes.set_xlim(left, right)
    _dress(axes, "Test accuracy (%)")


def _accuracy(rung: Mapping[str, Any]) -> float | None:
    value = (rung["metrics"] or {}).get("test_accuracy")
    return None if value is None else float(value)


def _note_failure(axes: Any, at: int, rung: Mapping[str, Any], width: float) -> None:
    reason = textwrap.shorten(" ".join(str(rung["error"]).split()), 70, placeholder=" …")
    axes.text(0.01 * width, at, f"failed: {reason}", va="center", ha="left", fontsize=9, color="#b42318")


def _dress(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=_INK, pad=8)
    axes.grid(axis="x", color="#e5e7eb", linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", labelsize=9, colors=_FAINT, length=0)
    axes.tick_params(axis="y", length=0, labelleft=False)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color("#9ca3af")


def _rung_labels(axes: Any, rungs: Sequence[Mapping[str, Any]]) -> None:
    """Writes the name of each rung and, smaller under it, what it changes; the first rung stands on top."""
    axes.set_yticks(range(len(rungs)))
    axes.set_ylim(len(rungs) - 0.5, -0.5)
    place = axes.get_yaxis_transform()
    for at, rung in enumerate(rungs):
        name = str(rung["name"]) if at == 0 else f"+ {rung['name']}"
        axes.text(-0.02, at - 0.17, name, transform=place, ha="right", va="center", fontsize=11, color=_INK)
        change = textwrap.shorten(str(rung["change"]), 48, placeholder=" …")
        axes.text(-0.02, at + 0.2, change, transform=place, ha="right", va="center", fontsize=8, color=_FAINT)


def _heading(figure: Any, rungs: Sequence[Mapping[str, Any]], kinds: Sequence[str], title: str, height: float) -> None:
    from matplotlib.patches import Patch

    figure.text(0.012, 1 - 0.30 / height, _headline(rungs), fontsize=15, fontweight="bold", color=_INK, va="center")
    figure.text(0.012, 1 - 0.60 / height, title, fontsize=10, color=_FAINT, va="center")
    shown = [kind for kind in _COLOURS if kind in kinds]
    figure.legend(
        handles=[Patch(color=_COLOURS[kind], label=_LABELS[kind]) for kind in shown],
        loc="lower left", bbox_to_anchor=(0.004, 0.0), ncols=len(shown), frameon=False, fontsize=9, labelcolor=_INK,
        handlelength=1.2,
    )  # fmt: skip


def _headline(rungs: Sequence[Mapping[str, Any]]) -> str:
    sizes = [size for size in map(peak_bytes, rungs) if size is not None]
    if len(sizes) < 2 or peak_bytes(rungs[0]) is None:
        return "The memory ladder"
    ratio = sizes[0] / min(sizes)
    return f"The same model trained in {ratio:.1f}{_TIMES} less memory" if ratio > 1 else "The memory ladder"
