"""The guides' language models, predicted: bert-large's published table, and Llama 3 8B's shape in full and with adapters.

bert-large: 512 sequences of 512 random tokens on one V100-16GB; `nvidia-smi` in MiB, CUDA context of 1343 included. The
settings are those of transformers' Trainer when the guide was written: AdamW that steps parameter by parameter, gradients
clipped to a norm of 1, eager attention, dropout on, no mask. Two things are not known: what that release of torch and
transformers allocated beyond what today's do, and what else the reading held; so the difference is printed, not fitted.
Beside it stands the same with the step of that time written by hand (`guides_then.py`), under `then`.

Llama 3 8B: batches of 2 sequences of 2048 tokens on an A100-80GB, weights in bf16. Each row has its anatomy, what the
estimate took (seconds of wall and of processor), and the most memory of the process that simulated it.

    python -m benchmarks.guides [--only NAME] [--preset NAME] [--then]      (writes benchmarks/results/guides.json)
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.results_file import RESULTS, write
from snugfit.cli.ladder_parts import settings_words
from snugfit.contexts import measured
from snugfit.ladder_presets import PRESETS, Preset
from snugfit.units import MIB

STUDIES = ("bert-large-512", "llama-8b")
OF_EARLY_2022 = "bert-large-512"
"""The study whose readings are of the step in `guides_then.py`."""
CONTEXT_OF_THEN = measured(1343 * MIB)
"""What CUDA took on that study's card, counted by the guide before anything ran. CUDA loaded every kernel at once then."""
KEPT = (
    "total_bytes", "peak_reserved_bytes", "peak_allocated_bytes", "context_bytes", "host_bytes", "anatomy_bytes",
    "attention_kernels", "peak_phase", "peak_operator", "step_seconds", "fidelity", "torch_version",
)  # fmt: skip


def estimated(preset: Preset, rung_name: str, folder: Path) -> dict[str, Any]:
    """Predicts one rung in a process of its own.

    Args:
        preset: The study.
        rung_name: One of its rungs.
        folder: Where the model's config is written.

    Returns:
        The row; with `left_out` and the reason where the rung cannot be simulated.
    """
    config = config_file(preset, folder)
    rung = next(rung for rung in preset.ladder({}, random_data=True).rungs if rung.name == rung_name)
    published = next(one.get("published") for one in preset.rungs if one["name"] == rung_name)
    command = [
        sys.executable, "-m", "snugfit", "estimate", f"hf:{config}", "--task", preset.task, "--seq-len",
        str(preset.seq_len), "--device", preset.card, *settings_words(rung), "--json",
    ]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    row: dict[str, Any] = {"preset": preset.name, "name": rung_name, "change": rung.change, "card": preset.card}
    if done.returncode:
        return {**row, "left_out": done.stderr.strip().splitlines()[-1]}
    document = json.loads(done.stdout)
    if preset.name == OF_EARLY_2022:
        context = CONTEXT_OF_THEN.typical_bytes
        document |= {"context_bytes": context, "total_bytes": document["peak_reserved_bytes"] + context}
    row |= {name: document[name] for name in KEPT}
    row |= {
        "recipe": rung.recipe.to_mapping(defaults=False),
        "batch": f"{rung.workload.batch_size} x {preset.seq_len}",
        "wall_seconds": round(time.perf_counter() - began, 2),
        "processor_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        "largest_process_bytes": after.ru_maxrss * 1024,  # the largest child so far: an upper bound for this row
    }
    if published:
        published_mib = int(published.split()[0])
        row["published"] = published
        row["published_bytes"] = published_mib * MIB
        row["difference_percent"] = round(100 * (document["total_bytes"] / (published_mib * MIB) - 1), 1)
    return row


def with_step_of_then(row: dict[str, Any], preset: Preset, folder: Path) -> dict[str, Any]:
    """Returns a row with `then`: the same rung with the step that its reading is of.

    Args:
        row: From `estimated`.
        preset: The study.
        folder: Where the model's config is written.
    """
    from benchmarks.guides_then import earlier_figures

    rung = next(rung for rung in preset.ladder({}, random_data=True).rungs if rung.name == row["name"])
    then = earlier_figures(preset, rung, config_file(preset, folder))
    then["difference_percent"] = round(100 * (then["total_bytes"] / row["published_bytes"] - 1), 1)
    return {**row, "then": then}


def config_file(preset: Preset, folder: Path) -> Path:
    """Writes a study's config and returns the file.

    Args:
        preset: The study.
        folder: Where it is written.
    """
    config = folder / preset.name / "config.json"
    config.parent.mkdir(exist_ok=True)
    config.write_text(json.dumps(preset.config), encoding="utf-8")
    return config


def main() -> None:
    """Predicts all rows, or those that were asked for, and writes them beside those that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=STUDIES, help="only this study")
    parser.add_argument("--only", metavar="NAME", help="only this rung")
    parser.add_argument(
        "--then", action="store_true", help="only the step of that time, beside the rows that are there"
    )
    args = parser.parse_args()
    path = RESULTS / "guides.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []

    def chosen(study: str) -> list[str]:
        return [rung["name"] for rung in PRESETS[study].rungs if args.only in (None, rung["name"])]

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for study in () if args.then else STUDIES if args.preset is None else (args.preset,):
            for rung in chosen(study):
                row = estimated(PRESETS[study], rung, folder)
                rows = [one for one in rows if (one["preset"], one["name"]) != (study, rung)] + [row]
                print(in_words(row), flush=True)
                write("guides", {"rows": rows})
        # These run in this process's own workers, so they come after the rows that measure a process.
        for at, row in enumerate(rows):
            if row["preset"] == OF_EARLY_2022 and row["name"] in chosen(OF_EARLY_2022) and "published_bytes" in row:
                rows[at] = with_step_of_then(row, PRESETS[OF_EARLY_2022], folder)
                print(in_words(rows[at]), flush=True)
                write("guides", {"rows": rows})
    print(path)


def in_words(row: dict[str, Any]) -> str:
    """Returns a row as a line.

    Args:
        row: From `estimated`.
    """
    label = f"{row['preset']:15s} {row['name']:19s}"
    if "left_out" in row:
        return f"{label} left out: {row['left_out']}"
    line = f"{label} {row['total_bytes'] / MIB:8.0f} MiB"
    if "published_bytes" in row:
        line += f"  published {row['published_bytes'] / MIB:6.0f} MiB  {row['difference_percent']:+5.1f} %"
    if "then" in row:
        line += f"  as then {row['then']['total_bytes'] / MIB:6.0f} MiB {row['then']['difference_percent']:+5.1f} %"
    parts = ", ".join(f"{name} {size / MIB:.0f}" for name, size in row["anatomy_bytes"].items() if size >= MIB)
    return f"{line}  {row['processor_seconds']:.1f} s of processor  ({parts})"


if __name__ == "__main__":
    main()
