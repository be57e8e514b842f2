"""Writes a benchmark's results with the machine, the versions and the date they belong to."""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Returns what the numbers depend on: processor, cores, GPU, versions, date."""
    import torch

    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
    }


def name_for(benchmark: str, device: Any) -> str:
    """Returns the name of a benchmark's results on a device; those of a CPU carry none.

    Args:
        benchmark: Name of the benchmark.
        device: A torch device.

    Returns:
        The file's name without its ending.
    """
    import torch

    return benchmark if device.type == "cpu" else f"{benchmark}-{torch.cuda.get_device_name()}".replace(" ", "-")


def write(name: str, results: dict[str, Any]) -> Path:
    """Writes `results/NAME.json`.

    Args:
        name: Name of the benchmark.
        results: Plain data; the machine is added.

    Returns:
        The file.
    """
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), **results}, indent=1) + "\n", encoding="utf-8")
    return path


def made_by_name(
    name: str, wanted: Iterable[str], order: Iterable[str], make: Callable[[str], dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Makes rows that have names, each written in the place of the one before it as soon as it is there.

    Args:
        name: Name of the benchmark.
        wanted: Names of the rows to make.
        order: Names of all rows, in which they are written; others are left out.
        make: Makes a row of a name.

    Yields:
        Name and row.
    """
    path, listed = RESULTS / f"{name}.json", list(order)
    rows: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else {}
    for one in wanted:
        rows[one] = make(one)
        write(name, {"rows": {key: rows[key] for key in listed if key in rows}})
        yield one, rows[one]


def processor() -> str:
    """Returns the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
