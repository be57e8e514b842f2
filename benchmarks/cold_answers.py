"""How long an answer takes on the command line, and where the seconds go.

Each command runs in processes of its own, as typed; its parts once more in one fresh process, so that each can be timed by
itself. Seconds are those of the processor (user and system, of all processes of a command), the least of several runs, of
plans one: they depend little on what else the machine does. Wall time stands beside them, and is as good as the machine is
quiet.

    python -m benchmarks.cold_answers                  (writes benchmarks/results/cold_answers.json)
    python -m benchmarks.cold_answers --only PART      (one of the parts below; the others stay as they are)
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.llama_shapes import LLAMA_8B
from benchmarks.results_file import RESULTS, machine

ROOT = RESULTS.parents[1]
REPEATS = 3
_TEXT = "hf:8b.json --task causal-lm --seq-len 2048 --batch-size 1 --precision bf16-true"
ESTIMATES = {
    "vit_l_16": "torchvision:vit_l_16 --optimizer adam --batch-size 64",
    "llama_8b": _TEXT,
    "llama_8b_lora": f"{_TEXT} --adapter lora",
    "llama_8b_qlora": f"{_TEXT} --init device --adapter lora --quantize nf4",
}
"""What is typed after `snugfit estimate`; every card of the table is answered for."""
SCRIPT = ROOT / "examples" / "plain_training.py"
"""The script that is estimated as it is, for one card."""
PLANS = {
    "vit_l_16": "torchvision:vit_l_16 --batch-size 64 --device rtx-4090 --budget 12GiB",
    "llama_8b_nothing_fits": (
        "hf:8b.json --task causal-lm --seq-len 2048 --batch-size 1 --device rtx-3060-12gb --allow rounding"
    ),
    "llama_8b_everything": (
        "hf:8b.json --task causal-lm --seq-len 2048 --batch-size 1 --device rtx-4090 --allow rounding,different"
    ),
    "llama_8b_everything_12gb": (
        "hf:8b.json --task causal-lm --seq-len 2048 --batch-size 8 --device rtx-3060-12gb --allow rounding,different"
    ),
    "llama_8b_8_gpus": "hf:8b.json --task causal-lm --seq-len 2048 --batch-size 8 --gpus 8 --device rtx-4090",
}
"""What is typed after `snugfit plan`."""
LIBRARIES = ("torch", "torchvision", "transformers.modeling_utils", "peft")
"""What the commands above import, in the worker."""


def seconds_of(words: list[str], folder: Path, repeats: int) -> dict[str, Any]:
    """Runs a program several times; returns the least seconds and what its last run printed."""
    processor, wall, printed = [], [], ""
    for _ in range(repeats):
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall.append(time.perf_counter() - began)
        processor.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if done.returncode not in (0, 3):  # 3: does not fit, which is an answer
            raise RuntimeError(done.stderr)
        printed = done.stdout
    return {"processor_seconds": min(processor), "wall_seconds": min(wall), "printed": printed}


def imports(folder: Path, repeats: int) -> dict[str, Any]:
    """Seconds of processor for `import` of each library in a fresh interpreter, with all that it brings along."""
    return {
        name: seconds_of([sys.executable, "-c", f"import {name}"], folder, repeats)["processor_seconds"]
        for name in LIBRARIES
    }


def commands(folder: Path, repeats: int) -> dict[str, Any]:
    """Each estimate as typed."""
    rows = {}
    for name, typed in (ESTIMATES | {"script": f"--device rtx-4090 {SCRIPT.name}"}).items():
        row = seconds_of([sys.executable, "-m", "snugfit", "estimate", "--json", *typed.split()], folder, repeats)
        del row["printed"]
        rows[name] = {"typed": f"snugfit estimate {typed}", **row}
    return rows


def plans(folder: Path, _: int) -> dict[str, Any]:
    """Each plan as typed, once, with the number of recipes that it simulated."""
    rows = {}
    for name, typed in PLANS.items():
        words = [sys.executable, "-m", "benchmarks.cold_answers", "--simulations", f"plan {typed} --json"]
        row = seconds_of(words, folder, repeats=1)
        rows[name] = {"typed": f"snugfit plan {typed}", "simulations": int(row.pop("printed")), **row}
    return rows


def parts(folder: Path, repeats: int) -> dict[str, Any]:
    """Where the seconds of each estimate go."""
    rows = {}
    for name in ESTIMATES:
        found = []
        for _ in range(repeats):
            words = [sys.executable, "-m", "benchmarks.cold_answers", "--parts-of", name]
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
        rows[name] = {part: min(one[part] for one in found) for part in found[0]}
    return rows


def parts_of(name: str) -> dict[str, float]:
    """Does what the two processes of a command do, in this one, and times each part."""
    import gc

    last = 0.0
    times: dict[str, float] = {}

    def done(part: str) -> None:
        nonlocal last
        now = time.process_time()
        times[part] = now - last
        last = now

    from snugfit.cli import options, parse
    from snugfit.recipe import Recipe
    from snugfit.run import Run
    from snugfit.simulator.estimate import cards_of

    args = parse(["estimate", *ESTIMATES[name].split(), "--json"])
    recipe, workload = options.settings_from(args)
    assert isinstance(recipe, Recipe) and Run(recipe, workload)
    named, cards = options.named_model(args), cards_of(args.device)
    done("Python, and reading what was typed")

    gc.disable()  # as the worker does
    import torch

    done("import of torch")
    from snugfit.late_modules import load_libraries_late
    from snugfit.private_torch import late_compiler

    late_compiler.load_late()
    load_libraries_late()
    from snugfit.recorder import registration
    from snugfit.simulator import session

    registration.register()
    torch.set_num_threads(1)
    gc.freeze()
    gc.enable()
    done("the simulated device, and the rest of snugfit")
    from snugfit.simulator.request import build_named

    build_named(named)
    done("the model's library, and the model without its weights")
    from snugfit.techniques.quantize.apply import load_libraries

    load_libraries(recipe)
    done("libraries of the recipe")
    import pickle

    from snugfit.fake_device.personality import Personality
    from snugfit.simulator.assembly import assemble
    from snugfit.simulator.subjects import named_subject

    subject, kind = named_subject(named, workload), Personality(capability=(8, 0))
    subject.record(recipe, kind)
    done("recording, the first in a process")
    recorded = subject.record(recipe, kind)
    done("recording again (no part of a command)")
    recorded = pickle.loads(pickle.dumps(recorded, protocol=pickle.HIGHEST_PROTOCOL))
    done("from the worker to the command")
    made = assemble([(card, recorded) for card in cards], headline=recorded, recipe=recipe, title=named.spec)
    done("replays, anatomy, times on every card")
    made.to_json()
    done("the document")
    assert session
    return times


def simulations(typed: str) -> int:
    """Runs a command and returns how many recipes its workers simulated."""
    import contextlib
    import io

    from snugfit.cli import main as command
    from snugfit.planner import probe
    from snugfit.workers.pool import Pool

    count, call = 0, Pool.call

    def counted(self: Pool, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += function is probe.probe
        return call(self, function, *args, **kwargs)

    Pool.call = counted  # type: ignore[method-assign]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        command(typed.split())
    return count


PARTS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "imports": imports, "commands": commands, "parts": parts, "plans": plans,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--parts-of", choices=ESTIMATES, help=argparse.SUPPRESS)
    parser.add_argument("--simulations", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.parts_of:
        print(json.dumps(parts_of(args.parts_of)))
        return
    if args.simulations:
        print(simulations(args.simulations))
        return
    path = RESULTS / "cold_answers.json"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "8b.json").write_text(json.dumps(LLAMA_8B), encoding="utf-8")
        shutil.copy(SCRIPT, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "src")))
        for name, measured in PARTS.items():
            if args.only in (None, name):
                about = {"machine": machine(), "load_average": os.getloadavg()[0], "repeats": args.repeats}
                found = {**about, "rows": measured(Path(folder), args.repeats)}
                kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
                kept[name] = found
                path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
