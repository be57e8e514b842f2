"""What all figures share: their inks, their units, axes without furniture. Loads matplotlib only to draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from snugfit.errors import SnugfitError
from snugfit.units import GIB, KIB, MIB

INK, FAINT, GRID = "#1f2328", "#6b7280", "#e5e7eb"
WARNING = "#b42318"
DASHES = (0, (4, 3))
_LONGEST = 170
"""Characters of a line above a figure."""


class NoMatplotlibError(SnugfitError):
    """Figures need matplotlib, which is not installed."""


def new_figure(width: float, height: float) -> Any:
    """Returns an empty figure (inches), made without a window and without matplotlib's global state."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise NoMatplotlibError("a figure needs matplotlib: pip install 'snugfit[report]'") from None
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def unit_for(largest_bytes: int) -> tuple[str, int]:
    """Returns the unit in which an axis is written, and its bytes."""
    units = (("GiB", GIB), ("MiB", MIB), ("KiB", KIB))
    return next((unit for unit in units if largest_bytes >= unit[1]), ("bytes", 1))


def clear_axes(axes: Any, *, along: str, without: Sequence[str]) -> None:
    """Leaves a grid, small numbers and the useful sides of the axes; `along`: x, y or both has numbers."""
    axes.grid(axis=along, color=GRID, linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(axis=along, labelsize=9, colors=FAINT, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side not in without)
        spine.set_color("#9ca3af")


def heading(figure: Any, lines: Sequence[str]) -> None:
    """Writes lines at the top left, the first one large; a very long one ends with dots."""
    height, down = figure.get_figheight(), 0.22
    for at, line in enumerate(lines):
        text = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 4].rstrip()} ..."
        size, weight, ink = (15, "bold", INK) if at == 0 else (9.5, "normal", FAINT)
        figure.text(0.012, 1 - down / height, text, fontsize=size, fontweight=weight, color=ink, va="center")
        down += 0.26 if at == 0 else 0.18


def legend(figure: Any, left: float, **more: Any) -> None:
    """Writes the legend in one row under the axes; `left` is a share of the width."""
    place = {"loc": "lower left", "bbox_to_anchor": (left, 0.0), "ncols": 9}
    figure.legend(**place, frameon=False, fontsize=9, labelcolor=INK, handlelength=1.2, columnspacing=1.4, **more)
