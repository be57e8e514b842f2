"""kill -9 at random moments of real runs; resumed, they end with the very weights of a run that was never stopped."""

import json
import os
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from command_line import command, environment, run_command, tiny_run
from safetensors.torch import load_file

KILLS = 4
"""In each of the two runs: the first at any moment of its first 1.5 s, the others at one after it began to train."""
STEPS = 240

RUNS = {
    "plain": ["--precision", "fp32", "--lr-schedule", "cosine", "--warmup-steps", "20"],
    "bf16": ["--precision", "bf16-true", "--stochastic-rounding", "--microbatch-size", "8", "--optimizer", "adam"],
}


def newest_checkpoint(run_dir):
    return max((path.name for path in (run_dir / "checkpoints").glob("step-*.ckpt")), default="")


def start(folder, words):
    log = (folder / "stderr.txt").open("a")
    return subprocess.Popen(command(*words), cwd=folder, env=environment(), stdout=log, stderr=log)


def killed_run(folder, words, rng):
    """Trains in one directory with kills; returns how many hit a run that was training, and the last command's result."""
    run_dir = folder / "killed"
    hits = 0
    for number in range(KILLS):
        resume = ["train", "--run-dir", run_dir, "--resume"] if (run_dir / "workload.yaml").exists() else None
        before = newest_checkpoint(run_dir)
        process = start(folder, resume or [*words, "--run-dir", run_dir])
        try:
            if number == 0:
                time.sleep(rng.uniform(0, 1.5))
            else:
                while process.poll() is None and newest_checkpoint(run_dir) == before:
                    time.sleep(0.002)
                time.sleep(rng.uniform(0, 0.3))
                hits += process.poll() is None
        finally:
            process.kill()
            code = process.wait()
        assert code in (-signal.SIGKILL, 0), (folder / "stderr.txt").read_text()
    return hits, run_command("train", "--run-dir", run_dir, "--resume", cwd=folder)


def one_chain(folder, name, seed):
    words = tiny_run("--max-steps", STEPS, "--save-every", "4", "--eval-every", "50", *RUNS[name])
    whole = run_command(*words, "--run-dir", folder / "whole", cwd=folder)
    assert whole.returncode == 0, whole.stderr
    hits, last = killed_run(folder, words, random.Random(seed))
    assert last.returncode == 0, last.stderr
    return hits


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kill -9 is a Unix signal")
def test_killed_again_and_again_and_resumed_is_bitwise_the_same(folder):
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    folders = {}
    for name in RUNS:
        folders[name] = folder / name
        folders[name].mkdir()
        (folders[name] / "model.py").write_text((folder / "model.py").read_text())
    with ThreadPoolExecutor(2) as pool:
        hits = list(pool.map(lambda name: one_chain(folders[name], name, f"{seed} {name}"), RUNS))
    print(f"kills while training: {hits}")
    # The run is long enough that nearly all kills after a checkpoint hit it while it trains.
    assert min(hits) >= 2
    for place in folders.values():
        whole = load_file(place / "whole" / "model.safetensors")
        killed = load_file(place / "killed" / "model.safetensors")
        assert whole.keys() == killed.keys()
        assert all(torch.equal(whole[key], killed[key]) for key in whole)
        assert rows(place / "whole") == rows(place / "killed")
        assert not list((place / "killed").rglob(".writing-*"))


def rows(run_dir):
    """Rows of metrics without the speed, which is another one each time."""
    found = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "samples_per_second"} for row in found]
