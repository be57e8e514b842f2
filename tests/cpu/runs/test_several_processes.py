"""Runs with two processes, joined by their environment as torchrun joins them, and started by `--gpus`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import patience
import pytest
from command_line import command, environment
from safetensors.torch import load_file

MODEL = """
import os
from torch import nn


class Hungry(nn.Sequential):
    def forward(self, x):
        limit = int(os.environ.get("MOST_SAMPLES", 1000))
        if self.training and os.environ.get("RANK") == "1" and len(x) > limit:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return super().forward(x)


def build(num_classes=10, width=24, dropout=0.0):
    layers = [nn.Linear(192, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width), nn.ReLU()]
    return Hungry(nn.Flatten(), *layers, nn.Linear(width, num_classes))


def other(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, num_classes))
"""

RUN = [
    "train", "model.py:build", "--data", "random", "--samples", "101", "--image-size", "8", "--model-arg", "num_classes=10",
    "--batch-size", "16", "--max-steps", "9", "--save-every", "3",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def both(folder, *words, each=lambda number: (), ranks=2, there=2, **variables):
    """Runs a command in two processes; returns their codes, what they said on stderr, and the document of the first."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    started = []
    for number in range(there):
        own = {**environment(), **shared, "RANK": str(number), "LOCAL_RANK": str(number), **variables}
        own |= {"LOCAL_WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        line = command(*words, *each(number), "--json")
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(line, cwd=folder, env=own, stdout=pipe, stderr=pipe, text=True))
    told = [one.communicate(timeout=patience.SECONDS) for one in started]
    errors = "".join(error for _, error in told)
    assert "Traceback" not in errors
    assert all(out == "" for out, _ in told[1:])
    document = json.loads(told[0][0]) if told[0][0] else None
    return [one.returncode for one in started], errors, document


def alone(folder, *words):
    done = subprocess.run(
        command(*words, "--json"), cwd=folder, env=environment(), capture_output=True, text=True,
        timeout=patience.SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def difference(one, other):
    one, other = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert one.keys() == other.keys()
    return max((one[name].double() - other[name].double()).abs().max().item() for name in one)


def test_two_processes_do_what_one_does(folder):
    codes, said, found = both(folder, *RUN, "--optimizer", "sgd", "--lr", "0.05", "--shard", "full", "--run-dir", "two")
    assert codes == [0, 0], said
    expected = alone(folder, *RUN, "--optimizer", "sgd", "--lr", "0.05", "--run-dir", "one")
    assert difference(folder / "one", folder / "two") < 1e-6
    for name, value in expected["metrics"].items():
        assert found["metrics"][name] == pytest.approx(value, rel=1e-5), name
    rows = [(folder / run / "metrics.jsonl").read_text().count("\n") for run in ("one", "two")]
    assert rows[0] == rows[1]
    ranks = found["measured"]["ranks"]
    assert len(ranks) == 2
    assert found["measured"]["peak_tensor_bytes"] == max(one["peak_tensor_bytes"] for one in ranks)


@pytest.mark.parametrize("shard", ["full", "none"])
def test_resume_is_bitwise_and_goes_to_one_process_and_back(folder, shard):
    run = [*RUN, "--shard", shard, "--model-arg", "dropout=0.2"]
    assert both(folder, *run, "--run-dir", "whole")[0] == [0, 0]
    assert both(folder, *run, "--max-steps", "5", "--run-dir", "parts")[0] == [0, 0]
    resumed = ["train", "--run-dir", "parts", "--resume", "--max-steps"]
    assert both(folder, *resumed, "9")[0] == [0, 0]
    assert difference(folder / "whole", folder / "parts") == 0.0
    assert alone(folder, *resumed, "11", "--gpus", "1")["steps"] == 11
    assert both(folder, *resumed, "12")[2]["steps"] == 12


def test_another_number_of_processes_goes_on_with_the_same_update(folder):
    run = [*RUN, "--optimizer", "adamw", "--clip-norm", "1"]
    alone(folder, *run, "--run-dir", "one")
    assert both(folder, *run, "--shard", "full", "--max-steps", "4", "--run-dir", "two")[0] == [0, 0]
    alone(folder, "train", "--run-dir", "two", "--resume", "--max-steps", "6", "--gpus", "1")
    assert both(folder, "train", "--run-dir", "two", "--resume", "--max-steps", "9")[0] == [0, 0]
    assert difference(folder / "one", folder / "two") < 1e-5


def test_memory_that_runs_out_in_one_process_is_answered_by_all(folder):
    run = [*RUN, "--optimizer", "sgd", "--lr", "0.05"]
    alone(folder, *run, "--run-dir", "one")
    codes, said, _ = both(folder, *run, "--shard", "full", "--run-dir", "two", MOST_SAMPLES="4")
    assert 3 in codes and said.count("ran out of memory") == 1, said
    codes, said, found = both(folder, "train", "--run-dir", "two", "--resume", MOST_SAMPLES="4")
    assert codes == [0, 0], said
    assert "All begin again" in said and found["recipe"]["microbatch_size"] == 4
    assert difference(folder / "one", folder / "two") < 1e-6


def test_another_model_in_one_process_is_one_message(folder):
    run = ["train", "--run-dir", "two", *RUN[2:]]
    codes, said, _ = both(folder, *run, each=lambda number: ["model.py:other" if number else "model.py:build"])
    assert codes == [2, 2]
    assert said.count("snugfit: ") == 1 and "process 1 of 2 has another model" in said


def test_a_missing_process_is_named(folder):
    codes, said, _ = both(folder, *RUN, "--rdzv-timeout", "2", ranks=3)
    assert codes == [2, 2]
    assert said.count("did not come within 2 s") == 1 and "number 2" in said


def test_more_processes_than_samples(folder):
    codes, said, _ = both(folder, *RUN, "--batch-size", "1")
    assert codes == [2, 2] and said.count("cannot be shared by 2 GPUs") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc to find the processes")
def test_gpus_start_processes_and_a_killed_one_ends_them(folder):
    line = command(*RUN, "--max-steps", "100000", "--no-evaluate", "--gpus", "2", "--run-dir", "two")
    pipe = subprocess.PIPE
    launcher = subprocess.Popen(line, cwd=folder, env=environment(), stdout=pipe, stderr=pipe, text=True)
    try:
        ended = time.monotonic() + patience.SECONDS
        while not (folder / "two" / ".saved").exists():
            assert launcher.poll() is None and time.monotonic() < ended
            time.sleep(0.05)
        children = children_of(launcher.pid)
        assert len(children) == 2
        os.kill(children[1], signal.SIGKILL)
        _, said = launcher.communicate(timeout=patience.SECONDS)
    finally:
        launcher.kill()
    assert launcher.returncode == 4, said
    assert said.count("snugfit: ") == 1, said
    assert "was ended by SIGKILL" in said and "--resume" in said and "Traceback" not in said
    assert not any(Path(f"/proc/{one}").exists() for one in children)


def children_of(parent):
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                if int((process / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent:
                    found.append(int(process.name))
    return sorted(found)
