"""The part of docs/accuracy.md that holds collectives against those that others measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MEASURED = ["machine", "ranks", "machines", "bytes", "rows", "median", "p10", "p90", "within_25_%"]
_PRINTED = ["machine", "collective", "MiB", "printed", "predicted", "time,_predicted_over_measured", "where"]
_TRAINED = [
    "collective",
    "ranks",
    "bytes",
    "count",
    "median,_us",
    "least,_us",
    "predicted,_us",
    "predicted_over_median",
]


def communication_section(results: Path) -> str:
    """Returns the section; empty where `communication` was never run.

    Args:
        results: Folder of all results.
    """
    path = results / "communication.json"
    if not path.exists():
        return ""
    found = json.loads(path.read_text(encoding="utf-8"))
    inside = [row for row in found["measured"] if row["machines"] == 1]
    between = [row for row in found["measured"] if row["machines"] > 1]
    fitted = found["fitted"]
    return "\n\n".join(
        [
            "## Collectives against published times\n\nPredicted over measured time of NCCL's kernels on other people's "
            "machines (`python -m benchmarks.communication`, after Vidur's profiles). Three constants are fitted to "
            f"{fitted['points']} points of all-reduces between 2 to 8 A100 on NVLink: "
            f"{fitted['start_microseconds']} microseconds to start, {fitted['long_step_microseconds']} a step, and "
            f"{fitted['short_share']} of the bandwidth in the short protocol. Everything else is NCCL's own model and "
            "data sheets.",
            "**All-reduce inside a machine.** Below 1 MiB ranks wait for each other's launches, which differ from size "
            "to size.",
            _table(inside, "all_reduce"),
            "**Send inside a machine.** On a bridge the sender's kernel ends when its buffer has taken the data, before "
            "they have crossed the link: 335 GB/s were measured on 300. The two A40 exchange 4 GB/s, which is neither "
            "their bridge nor PCIe: why is not known.",
            _table(inside, "send"),
            "**Between machines.** The profiles do not say which network it was. Its bandwidth is read off the large "
            "sends of one card, so these rows check the rest of the model only; in that cluster several cards together "
            "did not get several times what one got, so all-reduces of more cards are predicted too fast.",
            _table(between, "all_reduce") + "\n" + _table(between, "send", head=False),
            "**In a training run** on 8 H100 (a trace of modded-nanogpt). A kernel also waits for the last "
            "rank. The quickest of the small ones show a start of 14 to 25 microseconds, not the 43 of Vidur's runs.",
            _head(_TRAINED) + "\n".join(_trained(row) for row in found["in_training"]),
            "**What nccl-tests printed elsewhere**, in GB/s of bus bandwidth at the largest size of each run; nothing is "
            "fitted to it, but the share of NVLink in the switch is an engineer's figure for the same machine. GeForce "
            "cards reach each other through the host's memory, and AWS' network is not InfiniBand.",
            _head(_PRINTED) + "\n".join(_printed(row) for row in found["published"]),
        ]
    )


def _head(names: list[str]) -> str:
    return f"| {' | '.join(names).replace('_', ' ')} |\n|{'---|' * len(names)}\n"


def _trained(row: Mapping[str, Any]) -> str:
    values = (row["kind"], row["ranks"], row["nbytes"], row["count"], row["median_microseconds"],
              row["least_microseconds"], row["predicted_microseconds"], row["predicted_over_median"])  # fmt: skip
    return f"| {' | '.join(map(str, values))} |"


def _printed(row: Mapping[str, Any]) -> str:
    values = (row["machine"], row["kind"], row["nbytes"] >> 20, row["printed"], row["predicted"],
              row["time_predicted_over_measured"], row["where"])  # fmt: skip
    return f"| {' | '.join(map(str, values))} |"


def _table(rows: list[dict[str, Any]], kind: str, *, head: bool = True) -> str:
    lines = []
    for row in rows:
        if row["kind"] != kind:
            continue
        name = row["machine"] + ("" if kind == "all_reduce" else ", send")
        for size, one in (*row["sizes"].items(), ("all", row["all"])):
            values = (name, row["ranks"], row["machines"], size, one["rows"], one["median"], one["p10"], one["p90"],
                      f"{one['within_25_percent']:.0%}")  # fmt: skip
            lines.append(f"| {' | '.join(map(str, values))} |")
    return (_head(_MEASURED) if head else "") + "\n".join(lines)
