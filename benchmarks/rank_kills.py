"""Kills a random process of a run at random moments, and goes on: in as many processes as before, and in another number.

    python -m benchmarks.rank_kills --moments 10

Each moment is a run of its own by `snugfit train --gpus 2`, in which `kill -9` hits one process. It is resumed in two
processes (the weights must be bitwise those of a run that was never stopped) and, from a copy, in one or in three in turn
(equal in float64, see `TOLERANCE`). No process may be left, and no port that they listened at. Ends with exit code 1 where
one of that is not so. Results are in benchmarks/results/rank_kills.json.
"""

from __future__ import annotations

import argparse
import contextlib
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
TOLERANCE = 1e-12
"""Largest difference of a weight (of about 0.1) in float64, where gradients are added up in another order."""
MODEL = """
import os
from pathlib import Path

from torch import nn


class Doubled(nn.Sequential):
    def forward(self, x):
        return super().forward(x.double())


def build(num_classes=10):
    Path("process-" + os.environ.get("RANK", "0")).write_text(str(os.getpid()))
    layers = [nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, num_classes)]
    return Doubled(*layers).double()
"""
RANKS = 2
STEPS, SAVE_EVERY, LAST = 100, 5, 15
"""Processes of a run; its updates; how often it saves; how many updates before its end nothing is killed any more."""
LINE = [
    "train", "model.py:build", "--data", "random", "--samples", "640", "--image-size", "8", "--model-arg", "num_classes=10",
    "--batch-size", "32", "--max-steps", str(STEPS), "--save-every", str(SAVE_EVERY), "--no-evaluate", "--shard", "full",
]  # fmt: skip


def command(*words: object) -> list[str]:
    """A snugfit command."""
    return [sys.executable, "-m", "snugfit", *map(str, words)]


def run(folder: Path, *words: object) -> None:
    """Runs a command that must succeed."""
    done = subprocess.run(command(*words), cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} ended with {done.returncode}: {done.stderr}")


def listening() -> dict[str, int]:
    """Where something listens on this machine: the socket's number in /proc, and the port."""
    found = {}
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text(encoding="utf-8").splitlines()[1:] if table.exists() else ():
            words = line.split()
            if words[3] == "0A":
                found[f"socket:[{words[9]}]"] = int(words[1].rpartition(":")[2], 16)
    return found


def ports_of(process: int) -> set[int]:
    """The ports that a process listens at."""
    everywhere, found = listening(), set()
    for file in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError, KeyError):  # closed since, or no such socket
            found.add(everywhere[str(file.readlink())])
    return found


def killed(folder: Path, name: str, chance: random.Random) -> dict[str, Any]:
    """One run in which a process is killed."""
    started = subprocess.Popen(
        command(*LINE, "--gpus", RANKS, "--run-dir", name),
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    after = chance.randrange(STEPS - LAST)
    saved = folder / name / ".saved"
    while not saved.exists() or int(saved.read_text() or 0) < after // SAVE_EVERY * SAVE_EVERY:
        if started.poll() is not None:
            raise SystemExit(f"the run ended before it was killed: {started.communicate()[1]}")
        time.sleep(0.01)
    time.sleep(chance.random() * 0.2)
    processes = [int(path.read_text()) for path in sorted(folder.glob("process-*"))[:RANKS]]
    ports = ports_of(started.pid).union(*map(ports_of, processes))
    victim = chance.randrange(len(processes))
    os.kill(processes[victim], signal.SIGKILL)
    moment = time.monotonic()
    _, said = started.communicate()
    seconds = time.monotonic() - moment
    left = [one for one in processes if Path(f"/proc/{one}").exists()]
    kept = max(int(path.name[5:13]) for path in (folder / name / "checkpoints").glob("step-*.ckpt"))
    return {
        "killed": victim, "exit_code": started.returncode, "message": said.strip().rpartition("\n")[2].strip(),
        "traceback": "Traceback" in said, "seconds_to_end": round(seconds, 2), "processes_left": len(left),
        "ports_listened_at": len(ports), "ports_left": len(ports & set(listening().values())), "saved_step": kept,
    }  # fmt: skip


def difference(one: Path, other: Path) -> float:
    """The largest difference between the weights of two runs."""
    first, second = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def is_right(row: dict[str, Any]) -> bool:
    """Whether a moment went as it has to."""
    return (
        row["exit_code"] == 4
        and not (row["traceback"] or row["processes_left"] or row["ports_left"])
        and row["difference_same_number"] == 0.0
        and row["difference_other_number"] <= TOLERANCE
    )


def main() -> int:
    """Kills, goes on, compares, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chance, rows = random.Random(given.seed), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.py").write_text(MODEL)
        run(folder, *LINE, "--gpus", RANKS, "--run-dir", "whole")
        for number in range(given.moments):
            row = killed(folder, f"run-{number}", chance)
            others = (1, 3)[number % 2]
            shutil.copytree(folder / f"run-{number}", folder / f"other-{number}")
            run(folder, "train", "--run-dir", f"run-{number}", "--resume")
            run(folder, "train", "--run-dir", f"other-{number}", "--resume", "--gpus", others)
            row["difference_same_number"] = difference(folder / "whole", folder / f"run-{number}")
            row["other_number"] = others
            row["difference_other_number"] = difference(folder / "whole", folder / f"other-{number}")
            rows.append(row)
            print(json.dumps(row), flush=True)
            found = {"steps": STEPS, "tolerance_other_number": TOLERANCE, "moments": rows}
            RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if all(map(is_right, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
