"""Collectives as others measured them, against `snugfit.recording.communication`; and the three constants fitted to some.

    python -m benchmarks.communication TRUTH        (writes benchmarks/results/communication.json)

TRUTH is a folder with times that others measured: Vidur's (github.com/microsoft/vidur, NCCL kernels of all-reduces and
sends in float16, 2 KiB to 512 MiB, by a profiler). They are not part of this repository; what is fitted and found is.

Fitted, to all-reduces of 512 KiB and more on A100 inside one machine, every half octave of sizes and number of ranks
counting alike: the start of a collective, a step of the long protocol, and the bandwidth of the short one. The rest is
NCCL's own model and data sheets. Between machines Vidur does not say which network there was: its bandwidth is read off
the large sends between machines, and all-reduces are held against that. Collectives of a training run (a profiler's trace
of github.com/KellerJordan/modded-nanogpt on 8 H100) and what nccl-tests printed elsewhere are compared, never fitted.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results_file
from benchmarks.clock_fit import table
from snugfit.devices import Device, device_named
from snugfit.recording import communication
from snugfit.recording.communication import SHARES, SHORT_STEP_SECONDS, collective_seconds
from snugfit.recording.operator_run import Collective

A100, H100, A6000 = map(device_named, ("a100-80gb", "h100-80gb", "rtx-a6000"))
BRIDGED = dataclasses.replace(A100, peer_cards=2)
MACHINES = {
    "a100_dgx": A100,
    "a100_pairwise_nvlink": BRIDGED,
    "a40_pairwise_nvlink": dataclasses.replace(A6000, peer_link="NVLink 3", peer_bandwidth=56.25e9, peer_cards=2),
    "h100_dgx": H100,
    "h100_pairwise_nvlink": dataclasses.replace(H100, peer_bandwidth=300e9, peer_cards=2),
}
"""Part of a file's name -> the card, and how its machine joins cards: pairs have a bridge, of which NVIDIA's product
briefs of A100 and H100 say 600 GB/s in both directions, and the GA102 whitepaper 112.5."""
SIZES = (("below 64 KiB", 2**16), ("64 KiB to 1 MiB", 2**20), ("1 to 16 MiB", 2**24), ("above 16 MiB", math.inf))
FITTED_BYTES = 2**19
NETWORK_BYTES = 2**24
"""Sends of this size and more show a network's bandwidth."""
P4D = dataclasses.replace(A100, network_bandwidth=6.25e9)
FOUR_PORTS = dataclasses.replace(A100, network_bandwidth=12.5e9)
FIVE = device_named("rtx-5090")
GIB = 2**30
PUBLISHED: tuple[tuple[str, Device, Collective, float, str], ...] = (
    ("8 A100 40 GB (p4d)", P4D, Collective("all_reduce", GIB, 8, 1), 230.8, "NVIDIA/nccl#527"),
    ("8 A100", A100, Collective("all_reduce", 4 * GIB, 8, 1), 232.5, "NVIDIA/nccl#1048"),
    ("2 A100, bridged", BRIDGED, Collective("all_reduce", 12 * GIB, 2, 1), 208, "NVIDIA/nccl-tests#178"),
    ("3 A100, bridged in pairs", BRIDGED, Collective("all_reduce", 12 * GIB, 3, 1), 20, "NVIDIA/nccl-tests#178"),
    ("8 H100, ring", H100, Collective("all_gather", 16 * GIB, 8, 1), 370, "NVIDIA/nccl-tests#212"),
    ("8 H100, in the switch", H100, Collective("all_reduce", 16 * GIB, 8, 1), 476, "NVIDIA/nccl-tests#290"),
    ("4 RTX 5090", FIVE, Collective("all_reduce", 8 * GIB, 4, 1), 35, "NVIDIA/nccl#1639"),
    ("8 RTX 5090", FIVE, Collective("all_reduce", 8 * GIB, 8, 1), 28, "NVIDIA/nccl#1639"),
    ("2 x 8 A100 (p4d, 400 Gb/s a machine)", P4D, Collective("all_reduce", GIB, 16, 2), 57.2, "NVIDIA/nccl#527"),
    ("3 x 8 A100 (p4d)", P4D, Collective("all_reduce", GIB, 24, 3), 31.8, "NVIDIA/nccl#527"),
    ("4 x 8 A100 (p4d)", P4D, Collective("all_reduce", GIB, 32, 4), 29.6, "NVIDIA/nccl#527"),
    ("2 x 8 A100, 4 x 200 Gb/s", FOUR_PORTS, Collective("all_reduce", 4 * GIB, 16, 2), 86, "NVIDIA/nccl#1048"),
    ("3 x 8 A100, 4 x 200 Gb/s", FOUR_PORTS, Collective("all_reduce", 2**27, 24, 3), 96, "NVIDIA/nccl-tests#119"),
    ("4 x 8 H100, 8 x 400 Gb/s", H100, Collective("all_reduce", 8 * GIB, 32, 4), 320, "NVIDIA/nccl#1221"),
    ("2 x 1 H100", H100, Collective("all_reduce", 2**25, 2, 2), 41.3, "NVIDIA/nccl-tests#232"),
    ("32 x 8 H100", H100, Collective("all_gather", 2 * GIB, 256, 32), 200, "NVIDIA/nccl#1218"),
)  # fmt: skip
"""Machine, card, collective, and the bus bandwidth in GB/s that nccl-tests printed, with where it stands."""


@dataclasses.dataclass(frozen=True)
class Times:
    """Measured times of one collective on one machine between so many ranks of so many machines."""

    machine: str
    kind: str
    ranks: int
    machines: int
    nbytes: np.ndarray
    seconds: np.ndarray

    def predicted(self, card: Device) -> np.ndarray:
        """Returns what is predicted for each of them."""
        calls = (Collective(self.kind, int(size), self.ranks, self.machines) for size in self.nbytes)
        return np.array([collective_seconds(call, card) or math.nan for call in calls])


def read(folder: Path) -> list[Times]:
    """Returns all times of a folder."""
    found = []
    for path in sorted(folder.glob("vidur_network_*.csv.gz")):
        kind = "all_reduce" if "all_reduce" in path.name else "send_recv"
        columns = table(path)
        machine = path.name.removeprefix("vidur_network_").removesuffix(f"_{kind}.csv.gz")
        ranks, inside, sizes = (np.array(columns[name], int) for name in ("num_workers", "devices_per_node", "size"))
        times = np.array(columns[f"time_stats.{kind}.median"], float) * 1e-3
        for pair in sorted(set(zip(ranks.tolist(), inside.tolist(), strict=True))):
            chosen = (ranks == pair[0]) & (inside == pair[1])
            found.append(
                Times(machine, kind.removesuffix("_recv"), pair[0], pair[0] // pair[1], sizes[chosen], times[chosen])
            )
    return found


def medians(times: Times) -> list[tuple[int, float, float]]:
    """Returns ranks, bytes and seconds, the median of each half octave."""
    octave = np.round(2 * np.log2(times.nbytes)).astype(int)
    large = times.nbytes >= FITTED_BYTES
    return [
        (times.ranks, float(np.median(times.nbytes[here])), float(np.median(times.seconds[here])))
        for here in (large & (octave == one) for one in sorted(set(octave[large].tolist())))
    ]


def fit(known: list[Times]) -> dict[str, Any]:
    """Returns the three constants with the smallest mean error, and that error."""
    joined = [one for one in known if one.machines == 1 and one.machine.startswith("a100") and one.kind == "all_reduce"]
    joined = [one for one in joined if one.ranks <= (MACHINES[one.machine].peer_cards or 0)]
    ranks, nbytes, seconds = np.array([row for one in joined for row in medians(one)]).T
    bandwidth = (A100.peer_bandwidth or math.nan) * SHARES["NVLink"]
    steps, moved = 2 * (ranks - 1), 2 * (ranks - 1) / ranks * nbytes / bandwidth
    best: tuple[float, tuple[float, float, float]] = (math.inf, (0, 0, 0))
    for start, step, share in itertools.product(range(30, 51), np.arange(6, 14.1, 0.2), np.arange(0.4, 0.96, 0.02)):
        short = steps * SHORT_STEP_SECONDS["NVLink"] + moved / share
        found = start * 1e-6 + np.minimum(short, steps * step * 1e-6 + moved)
        best = min(best, (float(np.abs(np.log(found / seconds)).mean()), (start, float(step), float(share))))
    error, (start, step, share) = best
    return {
        "points": len(seconds),
        "start_microseconds": start,
        "long_step_microseconds": round(step, 1),
        "short_share": round(share, 2),
        "mean_absolute_log_error": round(error, 4),
        "in_use": {
            "start_microseconds": communication.START_SECONDS * 1e6,
            "long_step_microseconds": communication.LONG_STEP_SECONDS * 1e6,
            "short_share": communication.SHORT_SHARE,
        },
        "sends_below_1_mib_microseconds": {
            one.machine: round(float(np.median(one.seconds[one.nbytes < 2**20])) * 1e6, 1)
            for one in known
            if one.kind == "send" and one.machines == 1
        },
    }


def distribution(ratio: np.ndarray) -> dict[str, Any]:
    """Returns how predicted over measured times are spread."""
    return {
        "rows": len(ratio),
        "median": round(float(np.median(ratio)), 2),
        "p10": round(float(np.percentile(ratio, 10)), 2),
        "p90": round(float(np.percentile(ratio, 90)), 2),
        "within_25_percent": round(float((np.abs(np.log(ratio)) < math.log(1.25)).mean()), 3),
    }


def checked(known: list[Times]) -> list[dict[str, Any]]:
    """Returns the distribution of predicted over measured, by machine, collective, ranks and size."""
    networks = {
        one.machine: float(np.median((one.nbytes / one.seconds)[one.nbytes >= NETWORK_BYTES])) / SHARES["network"]
        for one in known
        if one.kind == "send" and one.machines == 2
    }
    rows = []
    for one in known:
        card = MACHINES[one.machine]
        if one.machines > 1:
            card = dataclasses.replace(card, network_bandwidth=networks.get(one.machine))
        ratio = one.predicted(card) / one.seconds
        row = {"machine": one.machine, "kind": one.kind, "ranks": one.ranks, "machines": one.machines}
        if one.machines > 1:
            row["network_gigabits_per_second_a_card"] = round((card.network_bandwidth or math.nan) * 8e-9, 1)
        least = 0.0
        row["sizes"] = {}
        for name, most in SIZES:
            here = (one.nbytes >= least) & (one.nbytes < most)
            least = most
            if here.any():
                row["sizes"][name] = distribution(ratio[here])
        rows.append({**row, "all": distribution(ratio)})
    return rows


def in_training(path: Path) -> list[dict[str, Any]]:
    """Returns the collectives in a trace of training on 8 H100, the median of those alike.

    A kernel lasts from the first rank that comes to the last that leaves, so the quickest of them is given too.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = [one for one in json.load(file)["traceEvents"] if one.get("cat") == "kernel"]
    found: dict[tuple[str, int, int], list[float]] = {}
    for event in events:
        made = event["args"]
        kind = {"_allgather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter"}.get(
            made.get("Collective name")
        )
        if kind is None:
            continue
        item = {"Float": 4, "BFloat16": 2}[made["dtype"]]
        whole = item * made["Out msg nelems" if kind == "all_gather" else "In msg nelems"]
        found.setdefault((kind, whole, made["Group size"]), []).append(event["dur"])
    rows = []
    for (kind, nbytes, ranks), lasted in sorted(found.items()):
        seconds = collective_seconds(Collective(kind, nbytes, ranks, 1), H100) or math.nan
        rows.append({"kind": kind, "nbytes": nbytes, "ranks": ranks, "count": len(lasted),
                     "median_microseconds": round(float(np.median(lasted)), 1), "least_microseconds": round(min(lasted), 1),
                     "predicted_microseconds": round(seconds * 1e6, 1),
                     "predicted_over_median": round(seconds * 1e6 / float(np.median(lasted)), 2)})  # fmt: skip
    return rows


def published() -> list[dict[str, Any]]:
    """Returns bus bandwidths that others printed, with those predicted."""
    rows = []
    for machine, card, call, printed, where in PUBLISHED:
        seconds = collective_seconds(call, card) or math.nan
        passes = 2 if call.kind == "all_reduce" else 1
        predicted = passes * (call.ranks - 1) / call.ranks * call.nbytes / seconds * 1e-9
        rows.append({"machine": machine, "kind": call.kind, "nbytes": call.nbytes, "printed": printed,
                     "predicted": round(predicted, 1), "time_predicted_over_measured": round(printed / predicted, 2),
                     "where": where})  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("truth", type=Path, help="folder with op_times/ and kineto/")
    truth = parser.parse_args().truth
    known = read(truth / "op_times")
    document = {
        "fitted": fit(known),
        "measured": checked(known),
        "in_training": in_training(truth / "kineto" / "modnano_2025-10-31_hook_rank0.json.gz"),
        "published": published(),
    }
    results_file.write("communication", document)


if __name__ == "__main__":
    main()
