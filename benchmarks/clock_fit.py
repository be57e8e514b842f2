"""Constants of the clock that no document gives, fitted to published times of single operators, never of whole models.

    python -m benchmarks.clock_fit TRUTH        (writes benchmarks/results/clock_fit.json)

TRUTH is a folder with operator times that others measured: NeuSight's (github.com/sitar-lab/NeuSight, elementwise kernels,
normalisation, softmax and products in float32 on V100, A100, P100, T4 and P4) and Vidur's (github.com/microsoft/vidur, the
products of transformer layers in 16 bits on A100 and A40). They are not part of this repository; what is fitted is.

- The share of the memory bandwidth that a long elementwise kernel reaches, by card.
- The same in 16 bits, from Liger's reference of ReLU and a square.
- How often layer norm and softmax move their input: their share against that of an elementwise kernel.
- How much of the peak a matrix product reaches with tiles of each size, on tensor cores.
- What beginning and ending a tile costs, from batched products of a short inner side in float32.
- What a row costs a layer norm besides its bytes, from rows of 300 to 1024 numbers, and how often its backward pass moves
  its input (Liger's reference kernels, github.com/linkedin/Liger-Kernel, on A100 and H100).
- From profiler traces (PyTorch's and Holistic Trace Analysis' examples): the time between two kernels in a full queue, and
  what cuDNN's batch norm with channels first reaches of an elementwise kernel's bandwidth, by channels.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results_file
from snugfit.recording.product_times import TILES, product_share

LONG_BYTES = 2**29
"""Kernels that move more are bound by the memory, whatever it costs to start them."""
BANDWIDTHS = {
    "Tesla V100-PCIE-32GB": 897e9, "NVIDIA A100-PCIE-40GB": 1555e9, "Tesla P100-PCIE-16GB": 732e9,
    "Tesla T4": 320e9, "Tesla P4": 192e9, "a100": 2039e9, "a40": 696e9,
}  # fmt: skip
"""Bytes a second, as NVIDIA's data sheets of these cards print them."""
ELEMENTWISE = {"add": 3, "addu": 2, "relu": 2, "gelu": 2, "tanh": 2}
"""File -> tensors that it reads and writes."""
FLOAT32 = {
    "Tesla V100-PCIE-32GB": 14.0e12, "NVIDIA A100-PCIE-40GB": 19.5e12, "Tesla P100-PCIE-16GB": 9.3e12,
    "Tesla T4": 8.1e12, "Tesla P4": 5.5e12,
}  # fmt: skip
"""Peak FLOP/s in float32, as NVIDIA's data sheets print them."""
TENSOR_CORES = {"a100": (312e12, 108), "a40": (149.7e12, 84)}
"""FLOP/s in 16 bits and streaming multiprocessors, as NVIDIA's data sheets print them."""
PROCESSORS = {"Tesla V100-PCIE-32GB": 80, "NVIDIA A100-PCIE-40GB": 108}
LIGER = {"NVIDIA A100-SXM4-80GB": 2039e9, "NVIDIA H100 80GB HBM3": 3350e9}
"""Bytes a second of the cards in Liger's times."""
WIDE_TILES = TILES[:8]
"""Those that products of transformers are worked off in."""


def table(path: Path) -> dict[str, list[str]]:
    """Returns the columns of a compressed csv file."""
    import csv

    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    return {name: [row[name] for row in rows] for name in rows[0]}


VIDUR_SIZES = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tensor_parallel_workers", "num_tokens")


def shares(path: Path, tensors: int, kernel: str = "") -> dict[str, float]:
    """Returns, by card, the median share of the bandwidth in kernels that are long enough."""
    columns = table(path)
    found: dict[str, list[float]] = {}
    parts = zip(*(columns[name] for name in ("Device", "B", "H", "Latency", "Kernel Name")), strict=True)
    for device, rows, width, milliseconds, name in parts:
        moved = float(rows) * float(width) * 4 * tensors
        if moved > LONG_BYTES and kernel in name and device in BANDWIDTHS:
            found.setdefault(device, []).append(moved / (float(milliseconds) * 1e-3) / BANDWIDTHS[device])
    return {device: round(float(np.median(values)), 3) for device, values in sorted(found.items())}


def large_products(path: Path) -> dict[str, float]:
    """Returns, by card, the median share of the float32 peak that products of more than 1e12 operations reach."""
    columns = table(path)
    found: dict[str, list[float]] = {}
    for device, *numbers in zip(*(columns[name] for name in ("Device", "B", "M", "N", "K", "Latency")), strict=True):
        *sizes, milliseconds = map(float, numbers)
        flops = 2 * float(np.prod(sizes))
        if flops > 1e12 and device in FLOAT32:
            found.setdefault(device, []).append(flops / (milliseconds * 1e-3) / FLOAT32[device])
    return {device: round(float(np.median(values)), 3) for device, values in sorted(found.items())}


def products(folder: Path) -> list[tuple[str, int, int, int, float]]:
    """Returns card, rows, columns, inner size and seconds of Vidur's products."""
    found = []
    for path in sorted(folder.glob("vidur_compute_*_mlp.csv.gz")):
        card = path.name.split("_")[2]
        columns = table(path)
        for index in range(len(columns["num_tokens"])):
            row = {name: values[index] for name, values in columns.items()}
            heads, kv, width, wide, workers, tokens = (int(row[name]) for name in VIDUR_SIZES)
            gates = 2 if row["use_gated_mlp"] == "True" else 1
            sizes = {
                "attn_pre_proj": ((heads + 2 * kv) * (width // heads) // workers, width),
                "attn_post_proj": (width, width // workers),
                "mlp_up_proj": (wide * gates // workers, width),
                "mlp_down_proj": (width, wide // workers),
            }
            for name, (outputs, inner) in sizes.items():
                milliseconds = row.get(f"time_stats.{name}.median")
                if milliseconds:
                    found.append((card, tokens, outputs, inner, float(milliseconds) * 1e-3))
    return found


def predicted(rows: np.ndarray, columns: np.ndarray, inner: np.ndarray, card: str, efficiency: tuple[float, ...],
              fixed: float, share: float) -> np.ndarray:  # fmt: skip
    """Returns seconds of many products by the rule of `snugfit.recording.kernel_times`."""
    peak, processors = TENSOR_CORES[card]
    best = np.zeros(len(rows))
    for (high, wide), efficient in zip(WIDE_TILES, efficiency, strict=True):
        for split in (1, 2, 4, 8):
            tiles = -(-rows // high) * -(-columns // wide) * split
            waves = -(-tiles // processors)
            used = efficient * rows * columns * split / (waves * processors * high * wide)
            if split > 1:
                used = np.where((tiles <= processors) & (inner // split >= 256), used, 0)
            best = np.maximum(best, used)
    flops = 2 * rows * columns * inner
    moved = 2 * (rows * columns + rows * inner + columns * inner)
    return np.maximum(flops / (peak * share * best), moved / (BANDWIDTHS[card] * 0.9)) + fixed


def fit_tiles(rows: list[tuple[str, int, int, int, float]]) -> dict[str, Any]:
    """Returns the efficiencies of tiles, and the shares of the peak, with the smallest median error over both cards."""
    by_card = {card: np.array([row[1:] for row in rows if row[0] == card], dtype=float) for card in TENSOR_CORES}
    generator = np.random.default_rng(0)
    by_card = {card: data[generator.permutation(len(data))[:3000]] for card, data in by_card.items()}

    def error(efficiency: tuple[float, ...], fixed: float, share: float) -> float:
        errors = [
            np.abs(np.log(predicted(data[:, 0], data[:, 1], data[:, 2], card, efficiency, fixed, share) / data[:, 3]))
            for card, data in by_card.items()
        ]
        return float(np.mean([one.mean() for one in errors]))

    best: tuple[float, Any] = (np.inf, None)
    parts = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5)
    for square, half, small in itertools.combinations_with_replacement(parts, 3):
        by_area = {256 * 128: 1.0, 128 * 128: square, 128 * 64: half, 64 * 64: small}
        efficiency = tuple(by_area[high * wide] for high, wide in WIDE_TILES)
        for share, fixed in itertools.product((0.75, 0.8, 0.85), (2e-6, 5e-6, 8e-6)):
            found = error(efficiency, fixed, share)
            if found < best[0]:
                best = (found, (efficiency, fixed, share))
    efficiency, fixed, share = best[1]
    left = {}
    for card, data in by_card.items():
        ratio = predicted(data[:, 0], data[:, 1], data[:, 2], card, efficiency, fixed, share) / data[:, 3]
        left[card] = {f"p{q}": round(float(np.percentile(ratio, q)), 3) for q in (10, 50, 90)}
    return {
        "tiles": [[*tile, part] for tile, part in zip(WIDE_TILES, efficiency, strict=True)],
        "share_of_peak": share,
        "seconds_to_start": fixed,
        "mean_absolute_log_error": round(best[0], 4),
        "predicted_over_measured": left,
    }


def tile_begin(path: Path) -> dict[str, Any]:
    """Returns how many steps of the inner side the begin and end of a tile cost, with the smallest median error."""
    columns = table(path)
    rows = []
    for device, *numbers in zip(*(columns[name] for name in ("Device", "B", "M", "N", "K", "Latency")), strict=True):
        *sizes, milliseconds = map(float, numbers)
        if device in PROCESSORS and milliseconds > 0.2 and all(size % 8 == 0 for size in sizes[1:]):
            rows.append((device, tuple(map(int, sizes)), milliseconds * 1e-3))
    chosen = np.random.default_rng(0).permutation(len(rows))[:4000]
    best: tuple[float, int] = (np.inf, 0)
    for steps in (0, 20, 30, 40, 50, 60, 80):
        errors: dict[str, list[float]] = {}
        for device, (batch, high, wide, inner), seconds in (rows[index] for index in chosen):
            share = product_share((batch, high, wide, 1 << 40), PROCESSORS[device]) * inner / (inner + steps)
            computed = 2 * batch * high * wide * inner / (FLOAT32[device] * share)
            moved = 4 * batch * (high * wide + high * inner + wide * inner) / (BANDWIDTHS[device] * 0.9)
            errors.setdefault(device, []).append(math.log(max(computed, moved) / seconds))
        spread = float(np.mean([np.abs(np.array(one) - np.median(one)).mean() for one in errors.values()]))
        best = min(best, (round(spread, 4), steps))
    return {"inner_steps": best[1], "mean_absolute_log_error": best[0]}


def layer_norm_rows(path: Path) -> dict[str, float]:
    """Returns, by card, the microseconds of an SM for each row besides what three copies take, median over short rows."""
    columns = table(path)
    found: dict[str, list[float]] = {}
    for device, rows, width, milliseconds in zip(
        *(columns[name] for name in ("Device", "B", "H", "Latency")), strict=True
    ):
        if device in PROCESSORS and float(width) <= 1024 and float(milliseconds) > 0.1:
            copies = 3 * float(rows) * float(width) * 4 / (BANDWIDTHS[device] * 0.9)
            left = float(milliseconds) * 1e-3 - copies
            found.setdefault(device, []).append(left / float(rows) * PROCESSORS[device] * 1e6)
    return {device: round(float(np.median(values)), 3) for device, values in sorted(found.items())}


def layer_norm_copies(path: Path) -> dict[str, dict[str, float]]:
    """Returns, by card and direction, how many copies of its input long rows of a layer norm take."""
    columns = table(path)
    names = (
        "kernel_name",
        "kernel_provider",
        "kernel_operation_mode",
        "metric_name",
        "x_value",
        "y_value_50",
        "gpu_name",
    )
    times: dict[tuple[str, str], float] = {}
    for kernel, provider, mode, metric, width, milliseconds, device in zip(*(columns[n] for n in names), strict=True):
        if (kernel, provider, metric, width) == ("layer_norm", "huggingface", "speed", "8192") and device in LIGER:
            times[device, mode] = float(milliseconds) * 1e-3 / (4096 * 8192 * 4 / (LIGER[device] * 0.9))
    return {
        device: {
            "forward": round(times[device, "forward"], 2),
            "backward": round(times[device, "full"] - times[device, "forward"], 2),
        }
        for device in LIGER
    }


def share_in_16_bits(path: Path) -> dict[str, float]:
    """Returns, by card, the share of the bandwidth that ReLU and a square of 4096 x 16384 numbers in bfloat16 reach."""
    columns = table(path)
    names = ("kernel_name", "kernel_provider", "kernel_operation_mode", "metric_name", "x_value")
    wanted = ("relu_squared", "torch", "forward", "speed", "16384")
    rows = zip(*(columns[name] for name in names), strict=True)
    return {
        device: round(4 * 4096 * 16384 * 2 / (float(milliseconds) * 1e-3) / LIGER[device], 3)
        for row, device, milliseconds in zip(rows, columns["gpu_name"], columns["y_value_50"], strict=True)
        if row == wanted and device in LIGER
    }


def kernels(path: Path) -> list[dict[str, Any]]:
    """Returns the kernels of a trace's busiest stream, in order."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = [one for one in json.load(file)["traceEvents"] if one.get("cat") in ("Kernel", "kernel")]
    streams: dict[Any, list[dict[str, Any]]] = {}
    for event in sorted(events, key=lambda one: one["ts"]):
        streams.setdefault(event["args"].get("stream"), []).append(event)
    return max(streams.values(), key=len)


def kernel_gaps(folder: Path) -> dict[str, float]:
    """Returns, by trace, the median microseconds between a kernel of more than 150 and the next."""
    found = {}
    for path in sorted(folder.glob("*.json.gz")):
        stream = kernels(path)
        gaps = [
            after["ts"] - before["ts"] - before["dur"]
            for before, after in itertools.pairwise(stream)
            if before["dur"] > 150
        ]
        found[path.name.split(".")[0]] = round(float(np.median(gaps)), 2)
    return found


def batch_norm_shares(path: Path) -> dict[str, dict[str, float]]:
    """Returns what batch norm reaches of 820 GB/s, an elementwise kernel's rate in the same trace, by channels."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    operators = {one["args"].get("External id"): one for one in events if one.get("cat") == "Operator"}
    copies = {"aten::cudnn_batch_norm": 3, "aten::cudnn_batch_norm_backward": 5}
    found: dict[str, dict[str, list[float]]] = {}
    for event in events:
        operator = operators.get(event["args"].get("external id")) if event.get("cat") == "Kernel" else None
        if operator is None or operator["name"] not in copies or "_1C11_kernel" not in event["name"]:
            continue
        images = operator["args"]["Input Dims"][0]
        share = copies[operator["name"]] * math.prod(images) * 4 / (event["dur"] * 1e-6) / 820e9
        by_channels = found.setdefault(operator["name"].removeprefix("aten::cudnn_"), {})
        by_channels.setdefault(str(images[1]), []).append(share)
    return {
        name: {
            channels: round(float(np.median(shares)), 2)
            for channels, shares in sorted(one.items(), key=lambda x: int(x[0]))
        }
        for name, one in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("truth", type=Path, help="folder with op_times/")
    truth = parser.parse_args().truth
    folder = truth / "op_times"
    document = {
        "memory_share": {
            name: shares(folder / f"neusight_{name}.csv.gz", count) for name, count in ELEMENTWISE.items()
        },
        "memory_share_in_16_bits": share_in_16_bits(folder / "liger_reference.csv.gz"),
        "layer_norm_share": shares(folder / "neusight_ln.csv.gz", 2),
        "softmax_share": {
            "rows up to 1024": shares(folder / "neusight_softmax.csv.gz", 2, "softmax_warp_forward"),
            "longer rows": shares(folder / "neusight_softmax.csv.gz", 2, "cunn_SoftMaxForward"),
        },
        "products_in_float32": large_products(folder / "neusight_linear.csv.gz"),
        "products_on_tensor_cores": fit_tiles(products(folder)),
        "tile_begin_and_end": tile_begin(folder / "neusight_bmm.csv.gz"),
        "layer_norm_microseconds_of_a_row": layer_norm_rows(folder / "neusight_ln.csv.gz"),
        "layer_norm_copies": layer_norm_copies(folder / "liger_reference.csv.gz"),
        "microseconds_between_kernels": kernel_gaps(truth / "kineto"),
        "batch_norm_share_by_channels": batch_norm_shares(
            truth / "kineto" / "tb_plugin_resnet50_workers0_a.pt.trace.json.gz"
        ),
    }
    results_file.write("clock_fit", document)


if __name__ == "__main__":
    main()
