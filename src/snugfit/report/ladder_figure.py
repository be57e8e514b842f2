"""The ladder as one figure: memory, time and accuracy of each rung, side by side, coloured by fidelity."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snugfit.report.figure import DASHES, FAINT, INK, WARNING, clear_axes, heading, legend, new_figure, unit_for
from snugfit.units import format_bytes, format_seconds

PEAKS = ("peak_tensor_bytes", "peak_reserved_bytes")
"""The one number that stands for a rung's memory: tensors on the CPU; on CUDA what the allocator took, as in the guides."""


def peak_bytes(rung: Mapping[str, Any]) -> int | None:
    """Returns the measured peak of a `ladder --json` entry, else the predicted one, None for a failed rung."""
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


def draw_ladder(rungs: Sequence[Mapping[str, Any]], *, title: str, paths: Sequence[Path]) -> None:
    """Draws entries of `ladder --json` and writes files; the ending says the format (png, svg)."""
    figure = new_figure(12.5, 2.05 + 0.62 * len(rungs))
    from matplotlib.patches import Patch

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
    heading(figure, [_headline(rungs), title])
    shown = [kind for kind in _COLOURS if kind in kinds]
    legend(figure, 0.004, handles=[Patch(color=_COLOURS[kind], label=_LABELS[kind]) for kind in shown])
    for path in paths:
        figure.savefig(path)


def _kind(rung: Mapping[str, Any], *, first: bool) -> str:
    return "plain" if first else str(rung["fidelity"]["level"])


def _memory_panel(axes: Any, rungs: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> None:
    sizes = [peak_bytes(rung) for rung in rungs]
    largest = max((size for size in sizes if size is not None), default=1)
    unit, factor = unit_for(largest)
    reference = sizes[0]
    texts = []
    for at, (rung, size) in enumerate(zip(rungs, sizes, strict=True)):
        if size is None:
            _note_failure(axes, at, rung, largest / factor)
        less = f"   {_times(reference / size)}" if reference is not None and size is not None and at > 0 else ""
        texts.append("" if size is None else f"{format_bytes(size)}{less}")
    _bars(axes, [None if size is None else size / factor for size in sizes], kinds, texts, room=1.32)
    _dress(axes, f"Peak memory ({unit})")


def _bars(
    axes: Any, lengths: Sequence[float | None], kinds: Sequence[str], texts: Sequence[str], *, room: float
) -> None:
    """Draws a bar for each rung that has a number, with its text behind it."""
    for at, (length, kind, text) in enumerate(zip(lengths, kinds, texts, strict=True)):
        if length is not None:
            axes.barh(at, length, height=0.62, color=_COLOURS[kind], zorder=2)
            axes.text(length, at, f" {text}", va="center", ha="left", fontsize=10, color=INK)
    axes.set_xlim(0, max((length for length in lengths if length is not None), default=1) * room)


def _times(ratio: float) -> str:
    if ratio >= 1:
        return f"{ratio:.1f}{_TIMES} less" if ratio < 9.95 else f"{ratio:.0f}{_TIMES} less"
    return f"{1 / ratio:.1f}{_TIMES} more"


def _seconds_panel(axes: Any, rungs: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> None:
    found = [rung["seconds"] for rung in rungs]
    unit, scale = (
        ("minutes", 60) if max((one for one in found if one is not None), default=1.0) >= 600 else ("seconds", 1)
    )
    texts = ["" if one is None else format_seconds(one) for one in found]
    _bars(axes, [None if one is None else one / scale for one in found], kinds, texts, room=1.42)
    _dress(axes, f"Training time ({unit})")


def _accuracy_panel(axes: Any, rungs: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> None:
    found = [_accuracy(rung) for rung in rungs]
    known = [100 * value for value in found if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 100.0)
    span = max(high - low, 4.0)
    left = max(0.0, low - 0.35 * span)
    right = high + 0.75 * span
    if found and found[0] is not None:
        axes.axvline(100 * found[0], color=_COLOURS["plain"], linewidth=1, linestyle=DASHES, zorder=1)
    for at, (value, kind) in enumerate(zip(found, kinds, strict=True)):
        if value is None:
            continue
        axes.plot(100 * value, at, "o", markersize=9, color=_COLOURS[kind], zorder=3)
        axes.text(
            100 * value + 0.07 * (right - left), at, f"{value:.1%}", va="center", ha="left", fontsize=10, color=INK,
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
    axes.text(0.01 * width, at, f"failed: {reason}", va="center", ha="left", fontsize=9, color=WARNING)


def _dress(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=INK, pad=8)
    clear_axes(axes, along="x", without=("top", "right", "bottom"))
    axes.tick_params(axis="y", length=0, labelleft=False)


def _rung_labels(axes: Any, rungs: Sequence[Mapping[str, Any]]) -> None:
    """Writes the name of each rung and, smaller under it, what it changes; the first rung stands on top."""
    axes.set_yticks(range(len(rungs)))
    axes.set_ylim(len(rungs) - 0.5, -0.5)
    place = axes.get_yaxis_transform()
    for at, rung in enumerate(rungs):
        name = str(rung["name"]) if at == 0 else f"+ {rung['name']}"
        axes.text(-0.02, at - 0.17, name, transform=place, ha="right", va="center", fontsize=11, color=INK)
        change = textwrap.shorten(str(rung["change"]), 48, placeholder=" …")
        axes.text(-0.02, at + 0.2, change, transform=place, ha="right", va="center", fontsize=8, color=FAINT)


def _headline(rungs: Sequence[Mapping[str, Any]]) -> str:
    sizes = [size for size in map(peak_bytes, rungs) if size is not None]
    if len(sizes) < 2 or peak_bytes(rungs[0]) is None:
        return "The memory ladder"
    ratio = sizes[0] / min(sizes)
    return f"The same model trained in {ratio:.1f}{_TIMES} less memory" if ratio > 1 else "The memory ladder"
