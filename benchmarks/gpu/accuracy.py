"""Predicted and measured memory of every configuration of the list; `benchmarks/report.py` makes the distribution of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.gpu.configurations import BY_NAME, cases
from benchmarks.gpu.part import Part, Place, percent

if TYPE_CHECKING:
    from snugfit.workers.pool import Pool


def measure(name: str, place: Place) -> dict[str, Any]:
    """Trains a configuration for a few steps.

    Args:
        name: Its name.
        place: Where.

    Returns:
        As `training_run.measure`.
    """
    from benchmarks.gpu import training_run

    return training_run.measure(BY_NAME[name].run(place.kind), place)


def predict(name: str, place: Place, pool: Pool) -> dict[str, Any]:
    """Simulates a configuration.

    Args:
        name: Its name.
        place: Where it is measured.
        pool: Workers.

    Returns:
        As `training_run.predict`.
    """
    from benchmarks.gpu import training_run

    return training_run.predict(BY_NAME[name].run(place.kind), place, pool)


def _line(row: dict[str, Any]) -> str:
    predicted, measured = row["predicted"], row["measured"]
    shown = [
        f"{what} {measured[key]:>14,} {percent(predicted[key], measured[key]):>9}"
        for what, key in (("allocated", "allocated_bytes"), ("reserved", "reserved_bytes"))
        if measured.get(key)
    ]
    if measured["host_bytes"] and place_is_cpu(row):
        shown.append(f"host {percent(predicted['host_bytes'], measured['host_bytes'])}")
    return "  ".join(shown)


def place_is_cpu(row: dict[str, Any]) -> bool:
    """Returns whether a row was measured on a CPU, where the host pool alone is host memory.

    Args:
        row: A row of this part.
    """
    return row["measured"].get("reserved_bytes") is None


PART = Part(
    name="accuracy",
    title="Predicted and measured memory",
    cases=cases,
    measure=measure,
    predict=predict,
    line=_line,
    first=24,
    timed=False,
    limit_seconds=180,
)
