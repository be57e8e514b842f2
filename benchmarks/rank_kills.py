"""Kills a random process of a run at random moments, and goes on: in as many processes as before, and in one.

    python -m benchmarks.rank_kills --moments 10

Each moment is a run of its own by `snugfit train --gpus 2`, in which `kill -9` hits one process. It is resumed in two
processes (the weights must be bitwise those of a run that was never stopped) and, from a copy, in one (equal up to
rounding). Results are in benchmarks/results/rank_kills.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

RESULTS = Path(__file__).parent / "results" / "rank_kills.json"
MODEL = """
import torch
from torch import nn


class Doubled(nn.Sequential):
    def forward(self, x):
        return super().forward(x.double())


def build(num_classes=10):
    layers = [nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, num_classes)]
    return Doubled(*layers).double()
"""
STEPS = 200
LINE = [
    "train", "model.py:build", "--data", "random", "--samples", "640", "--image-size", "8", "--model-arg", "num_classes=10",
    "--batch-size", "32", "--max-steps", str(STEPS), "--save-every", "10", "--no-evaluate", "--shard", "full",
]  # fmt: skip


def command(*words: object) -> list[str]:
    """A snugfit command."""
    return [sys.executable, "-m", "snugfit", *map(str, words)]


def run(folder: Path, *words: object) -> None:
    """Runs a command that must succeed."""
    done = subprocess.run(command(*words), cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} ended with {done.returncode}: {done.stderr}")


def children_of(parent: int) -> list[int]:
    """The processes that a process has started."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def killed(folder: Path, name: str, chance: random.Random) -> dict[str, Any]:
    """One run in which a process is killed."""
    started = subprocess.Popen(
        command(*LINE, "--gpus", 2, "--run-dir", name),
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    after, metrics = chance.randrange(1, STEPS - 20), folder / name / "checkpoints"
    saved = folder / name / ".saved"
    while not saved.exists() or int(saved.read_text() or 0) < after // 10 * 10:
        if started.poll() is not None:
            raise SystemExit(f"the run ended before it was killed: {started.communicate()[1]}")
        time.sleep(0.01)
    time.sleep(chance.random() * 0.2)
    processes = [one for one in children_of(started.pid) if one != started.pid]
    victim = chance.randrange(len(processes))
    os.kill(processes[victim], signal.SIGKILL)
    moment = time.monotonic()
    _, said = started.communicate()
    seconds = time.monotonic() - moment
    left = [one for one in processes if Path(f"/proc/{one}").exists()]
    kept = max(int(path.name[5:13]) for path in metrics.glob("step-*.ckpt"))
    return {
        "killed": victim, "exit_code": started.returncode, "messages": said.count("snugfit: "),
        "traceback": "Traceback" in said, "seconds_to_end": round(seconds, 2), "processes_left": len(left),
        "saved_step": kept,
    }  # fmt: skip


def difference(one: Path, other: Path) -> float:
    """The largest difference between the weights of two runs."""
    first, second = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def main() -> None:
    """Kills, goes on, compares, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chance, rows = random.Random(given.seed), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.py").write_text(MODEL)
        run(folder, *LINE, "--gpus", 2, "--run-dir", "whole")
        for number in range(given.moments):
            row = killed(folder, f"run-{number}", chance)
            shutil.copytree(folder / f"run-{number}", folder / f"alone-{number}")
            run(folder, "train", "--run-dir", f"run-{number}", "--resume")
            run(folder, "train", "--run-dir", f"alone-{number}", "--resume", "--gpus", 1)
            row["difference_same_number"] = difference(folder / "whole", folder / f"run-{number}")
            row["difference_one_process"] = difference(folder / "whole", folder / f"alone-{number}")
            rows.append(row)
            print(json.dumps(row), flush=True)
            RESULTS.write_text(json.dumps({"steps": STEPS, "moments": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
