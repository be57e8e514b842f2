"""Predicted and measured memory: the spread of the errors, the worst rows, and their figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.part import TUNING, VALIDATION
from benchmarks.gpu.subjects import STAND_INS
from benchmarks.report.tables import Row, named, percent, table
from snugfit.units import format_bytes

WORST = 10
METRICS = (("allocated_bytes", "allocated"), ("reserved_bytes", "reserved"))
"""What is compared: key of a row and its word; on a CPU allocated bytes are those of tensors, and nothing is reserved."""


def accuracy(rows: Sequence[Row], folder: str) -> str:
    """Returns the part of the page about predicted and measured memory."""
    parts = []
    for key, word in METRICS:
        if all(error(row, key) is None for row in rows):
            continue
        halves = [("all", rows)]
        halves += [(half, [row for row in rows if row.get("half") == half]) for half in (VALIDATION, TUNING)]
        if folder.startswith("cpu-") and not parts:
            full = sorted({row["settings"]["model"] for row in rows} - STAND_INS.keys())
            parts.append(
                "On a CPU most models are small stand-ins of the same structure, with "
                f"{min(STAND_INS.values()) / 1e6:.2g} to {max(STAND_INS.values()) / 1e6:.2g} million parameters, so their "
                "bytes are not those of the models that they are named after."
                + (f" Of full size are {', '.join(full)}." if full else "")
            )
        title = "Tensor bytes" if folder.startswith("cpu-") else f"{word.capitalize()} bytes"
        parts.append(f"**{title}**\n\n" + distributions(halves, key, "half"))
        parts.append(distributions(grouped(rows, lambda row: [row["settings"]["family"]]), key, "family"))
        parts.append(distributions(grouped(rows, techniques), key, "technique"))
        parts.append(f"The {WORST} rows with the largest error:\n\n" + worst(rows, key, folder))
    host = [row for row in rows if folder.startswith("cpu-") and row["measured"]["host_bytes"]]
    if host:
        equal = sum(row["predicted"]["host_bytes"] == row["measured"]["host_bytes"] for row in host)
        parts.append(f"Bytes in the host pool are predicted exactly in {equal} of {len(host)} rows that use it.")
    return "\n\n".join(parts)


def error(row: Row, key: str) -> float | None:
    """Returns predicted over measured, less 1; None where one of them is missing."""
    predicted, measured = row.get("predicted") or {}, row.get("measured") or {}
    if not predicted.get(key) or not measured.get(key):
        return None
    return float(predicted[key] / measured[key] - 1)


def distribution(rows: Iterable[Row], key: str) -> dict[str, Any] | None:
    """Returns the spread of the errors of rows; None where there is none."""
    errors = [one for one in (error(row, key) for row in rows) if one is not None]
    if not errors:
        return None
    return {
        "rows": len(errors),
        "median": statistics.median(abs(one) for one in errors),
        "over": max(0.0, *errors),
        "under": min(0.0, *errors),
        "within_2_percent": sum(abs(one) <= 0.02 + 1e-9 for one in errors),
    }


def distributions(groups: Iterable[tuple[str, Sequence[Row]]], key: str, what: str) -> str:
    """Returns a table of the spread of errors by group."""
    found = []
    for name, rows in groups:
        spread = distribution(rows, key)
        if spread is not None:
            found.append(
                (
                    name,
                    str(spread["rows"]),
                    f"{100 * spread['median']:.2f} %",
                    percent(spread["over"]),
                    percent(spread["under"]),
                    f"{spread['within_2_percent']} of {spread['rows']}",
                )
            )
    return table([what, "rows", "median error", "worst over", "worst under", "within 2 %"], found) if found else ""


def grouped(rows: Sequence[Row], names: Callable[[Row], Iterable[str]]) -> list[tuple[str, list[Row]]]:
    """Returns rows by the names each of them goes by, the largest group first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        for name in names(row):
            found.setdefault(name, []).append(row)
    return sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))


def techniques(row: Row) -> list[str]:
    """Returns the recipe fields of an accuracy row, each with its value; `plain` where there are none."""
    recipe = row["settings"]["recipe"]
    found = [f"{field}={value}" if isinstance(value, str) else field for field, value in recipe.items()]
    optimizer = row["settings"]["training"].get("optimizer")
    return [*found, *([f"optimizer={optimizer}"] if optimizer else [])] or ["plain"]


def worst(rows: Sequence[Row], key: str, folder: str) -> str:
    """Returns a table of the rows with the largest errors."""
    found = sorted(((abs(one), row) for row in rows if (one := error(row, key)) is not None), key=lambda pair: -pair[0])
    return table(
        ["configuration", "half", "measured", "predicted", "error", "predicted peak at"],
        [
            (
                named(row, folder),
                row.get("half", ""),
                format_bytes(row["measured"][key]),
                format_bytes(row["predicted"][key]),
                percent(row["predicted"][key] / row["measured"][key] - 1),
                f"{row['predicted']['peak_phase']}, `{row['predicted']['peak_operator']}`",
            )
            for _, row in found[:WORST]
        ],
    )


def figure(rows: Sequence[Row], folder: str, path: Path) -> bool:
    """Draws error over measured bytes, the halves apart; returns whether there was anything to draw."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    key = "allocated_bytes" if folder.startswith("cpu-") else "reserved_bytes"
    points = [
        (row["measured"][key], 100 * one, row.get("half")) for row in rows if (one := error(row, key)) is not None
    ]
    if not points:
        return False
    chart, axes = pyplot.subplots(figsize=(7, 3.6), dpi=110)
    for half, marker, colour in ((VALIDATION, "o", "#1f77b4"), (TUNING, "x", "#ff7f0e")):
        chosen = [point for point in points if point[2] == half]
        axes.scatter(
            [x / 2**20 for x, _, _ in chosen],
            [y for _, y, _ in chosen],
            marker=marker,
            c=colour,
            s=18,
            label=half,
            alpha=0.8,
        )
    axes.axhspan(-2, 2, color="#2ca02c", alpha=0.12, label="within 2 %")
    axes.axhline(0, color="#888888", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1.0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ticks = percent_ticks(y for _, y, _ in points)
    axes.set_ylim(1.3 * ticks[0], 1.3 * ticks[-1])
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g} %" if value else "0 %"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("measured MiB, " + ("tensors" if key == "allocated_bytes" else "reserved"))
    axes.set_ylabel("predicted less measured")
    axes.set_title(folder, fontsize=10)
    axes.legend(fontsize=8)
    chart.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    chart.savefig(path, metadata={"Software": None})
    pyplot.close(chart)
    return True


def percent_ticks(errors: Iterable[float]) -> list[float]:
    """Returns where the axis of errors has labels: plain percentages on both sides, as far as the errors reach."""
    reach = max((abs(one) for one in errors), default=0.0)
    steps = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]
    shown = steps[: next((at for at, step in enumerate(steps) if step >= reach), len(steps) - 1) + 1]
    shown = shown if len(shown) >= 3 else steps[:3]
    return [-step for step in reversed(shown)] + [0.0, *shown]
