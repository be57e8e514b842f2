"""The demo of several GPUs: four processes on this CPU, what each rung takes on the fullest of them, predicted and measured.

python -m benchmarks.demo_gpus [--out runs/demo-gpus]
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.ranks import SUBJECTS, Processes, predicted
from benchmarks.report.tables import table
from benchmarks.results_file import machine
from snugfit.units import MIB, format_bytes

RANKS, MODEL = 4, "vit"
RUNGS: dict[str, dict[str, Any]] = {
    "replicate": {},
    "shard": {"shard": "full"},
    "+ checkpointing": {"shard": "full", "checkpoint": "all"},
    "+ offload to the host": {"shard": "full", "checkpoint": "all", "offload_parameters": "all"},
}
NOTE = "On a CPU the host is the device, so what is offloaded to it stays in the same memory; on a card it leaves."


def main() -> None:
    """Measures and predicts each rung; prints a table, and writes it and a figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo-gpus"))
    out: Path = parser.parse_args().out
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    processes = Processes(RANKS)
    rows: list[dict[str, Any]] = []
    for name, fields in RUNGS.items():
        truth = [one["peak_tensor_bytes"] for one in processes.measure(MODEL, fields)]
        rows.append({"rung": name, "measured": truth, "predicted": predicted(RANKS, SUBJECTS[MODEL], fields)})
        print(f"{name}: measured {format_bytes(max(truth))}", flush=True)
    processes.close()
    lines = table(
        ["rung", *(f"process {number}" for number in range(RANKS)), "fullest, predicted"],
        [(row["rung"], *map(format_bytes, row["measured"]), format_bytes(max(row["predicted"]))) for row in rows],
    )
    print(f"\n{lines}\n\n{NOTE}")
    (out / "table.md").write_text(f"{lines}\n\n{NOTE}\n", encoding="utf-8")
    (out / "demo_gpus.json").write_text(
        json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )
    _figure(rows, out / "memory.png")
    print(f"written to {out}")


def _figure(rows: list[dict[str, Any]], path: Path) -> None:
    """Bars of the fullest process, predicted beside measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chart, field = pyplot.subplots(figsize=(7, 3.6), dpi=110)
    for shift, kind, color in ((-0.2, "predicted", "#9ecae1"), (0.2, "measured", "#1f77b4")):
        sizes = [max(row[kind]) / MIB for row in rows]
        bars = field.bar([place + shift for place in range(len(rows))], sizes, width=0.38, label=kind, color=color)
        field.bar_label(bars, fmt="%.1f", fontsize=8)
    field.set_xticks(range(len(rows)), [row["rung"] for row in rows], fontsize=8)
    field.set_ylabel("MiB on the fullest of four processes", fontsize=8)
    field.legend(frameon=False, fontsize=8)
    field.spines[["top", "right"]].set_visible(False)
    chart.tight_layout()
    chart.savefig(path)
    pyplot.close(chart)


if __name__ == "__main__":
    main()
