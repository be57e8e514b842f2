"""docs/published.md: what others measured on real cards, beside what is predicted."""

from __future__ import annotations

from typing import Any

from benchmarks.batch_bounds import CONTEXT_BYTES, TOTAL_BYTES
from snugfit.units import GIB, MIB

PEFT_FAR = 0.03
"""Rows of adapters that are further off are named."""


def memory_part(results: dict[str, Any]) -> str:
    """Allocator histories and batches."""
    traces, batches, machine = results["traces"], results["batches"], results["machine"]
    ran, failed = batches["ran"], batches["failed"]
    wrong = [
        row for row in batches["rows"] if row.get("fail_mib") is not None and row["fail_mib"] <= batches["capacity_mib"]
    ]
    lines = [
        "## Memory",
        "",
        f"Made from `benchmarks/results/published_memory.json` (`python -m benchmarks.published_memory TRUTH`), "
        f"{machine['date']}, torch {machine['torch']}. No card was needed: others had them.",
        "",
        f"**Allocator histories.** {traces['histories']} memory snapshots of real runs (torch's own format, public "
        f"repositories) are replayed from the state in which they begin: of {traces['requests']:,} requests "
        f"{traces['same_block']:,} are given the recorded address, after {traces['same_reserved']:,} as many bytes are "
        f"reserved as recorded, and {traces['equal_peaks']} of {traces['histories']} peaks are equal. In them the card was "
        f"asked for {traces['segments']:,} segments.",
        "",
        "**Sequences.** Steps of transformers whose code is public, simulated as their authors profiled them, beside "
        "what the allocator recorded: the share of all allocated bytes that is predicted, in the same order.",
        "",
        "| repository | snapshot | allocated, GiB | predicted, GiB | matched | recorded and not predicted |",
        "|---|---|---|---|---|---|",
        *map(_sequence, results["sequences"]),
        "",
        "Not predicted are the counters of sums by several blocks, and what `index_put` sorts its indices in.",
        "",
        f"**Batches.** timm's training results on an RTX 3090 say which batch ran, and which larger one did not. With "
        f"{TOTAL_BYTES // MIB:,} MiB in all, and {CONTEXT_BYTES // MIB:,} MiB of them for CUDA 11 with all kernels loaded, "
        f"{batches['said_to_fit']} of {ran} batches that ran are said to fit, and {batches['said_not_to_fit']} of {failed} "
        f"that did not are said not to. Said to fit although they failed:",
        "",
        "| model | layout | batch | predicted need, MiB | there were |",
        "|---|---|---|---|---|",
    ]
    for row in wrong:
        layout = "channels last" if row["channels_last"] else "channels first"
        lines.append(
            f"| {row['model']} | {layout} | {row['fail_batch']} | {row['fail_mib']:,.0f} | {batches['capacity_mib']:,} |"
        )
    over = [row for row in batches["rows"] if "error" not in row and row["fit_mib"] > batches["capacity_mib"]]
    if over:
        lines += [
            "",
            "Said not to fit although they ran: "
            + ", ".join(f"{row['model']} at {row['fit_batch']}" for row in over)
            + ".",
        ]
    lines += [
        "",
        "cuDNN's workspaces are not in these predictions: with `cudnn.benchmark` it takes what is left, and slower kernels "
        "where nothing is left.",
        *_more_peaks(results.get("more", {})),
    ]
    return "\n".join(lines)


def _more_peaks(more: dict[str, Any]) -> list[str]:
    """Peaks of more runs, and the workspaces of a recorded one; nothing where `--more` was never asked for."""
    if not more:
        return []
    peft, ran = more["peft"], more["lambda"]["compared"]
    far = [f"{row['name']} {row['off']:+.0%}" for row in peft["compared"] if abs(row.get("off", 0)) > PEFT_FAR]
    failed = [row["name"] for row in peft["compared"] if row.get("error")]
    tokens = next(row["tokens"] for row in peft["compared"] if "tokens" in row)
    spaces = more["workspaces"]
    kinds = "; ".join(
        f"{name}: {one['median_mib']:g} MiB at the median and {one['most_mib']:g} at most"
        for name, one in spaces["workspaces"].items()
    )
    rise, without, predicted = (
        spaces[name] for name in ("rise_mib", "rise_without_workspaces_mib", "predicted_rise_mib")
    )
    return [
        "",
        "**Peaks of more runs on one card** (`benchmarks/more_memory.py`), predicted over measured:",
        "",
        "| of | compared | rows | median | median absolute | furthest under | furthest over |",
        "|---|---|---|---|---|---|---|",
        *(_group("training steps of the course's transformers", more[name]) for name in ("course",) if name in more),
        _group("adapters on Llama-3.2-3B (PEFT)", peft),
        "",
        f"PEFT's batches vary up to 768 tokens, and the length behind its 99th percentile is not published: all rows are "
        f"predicted at {tokens} tokens, at which the median is 0, so only the spread says something. More than "
        f"{PEFT_FAR:.0%} off: {', '.join(far) or 'none'}. Not simulated: {', '.join(failed) or 'none'} (they are built or "
        "run by values). Of the batches that Lambda's logs say ran on one card, "
        f"{sum(row['said_to_fit'] for row in ran)} of {len(ran)} are said to fit; what NVML showed there holds caches "
        "of other shapes and says nothing of a step's need.",
        "",
        "**cuDNN's workspaces**, seen in a recorded step of ResNet-50 (32 images, float32, V100, 2021; PyTorch's own "
        f"example trace): {kinds}. Winograd's are its transformed input, output and weights; others are tables, or copies "
        f"of the weights. Which algorithm is taken differs from shape to shape. The step allocates {rise:,.1f} MiB over "
        f"what was there before it, {without:,.1f} MiB without them; predicted are {predicted:,.1f} MiB, "
        f"{predicted / without - 1:+.2%} of the latter and {predicted / rise - 1:+.2%} of the former.",
    ]


def _group(name: str, group: dict[str, Any]) -> str:
    what = next(row["what"] for row in group["compared"] if "what" in row)
    values = (group[key] for key in ("median", "median_absolute", "worst_under", "worst_over"))
    return f"| {name} | {what} | {group['rows']} | {' | '.join(f'{value:+.2%}' for value in values)} |"


def _sequence(row: dict[str, Any]) -> str:
    missing = ", ".join(f"{count} x {size:,} B" for size, count in row["only_recorded"]) or "nothing"
    recorded, predicted = row["recorded_bytes"], row["predicted_bytes"]
    return (
        f"| {row['repository']} | {row['snapshot']} | {recorded / GIB:.2f} | {predicted / GIB:.2f} | "
        f"{row['matched_bytes'] / recorded:.3%} | {missing} |"
    )


def published_page(memory: dict[str, Any]) -> str:
    """The page."""
    return "# Against published measurements\n\n" + memory_part(memory) + "\n"
