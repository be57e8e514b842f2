"""Processes that a command starts: by `--gpus`, by torchrun, on two machines, by SLURM; and how they end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import patience
import pytest
import torch
from several_processes import MODEL, RUN, alone, both, command, difference, ended, free_port, of_model, started
from torch import nn
from torch.utils.data import TensorDataset

import snugfit

BY_RUNS = [*RUN, "--optimizer", "sgd", "--lr", "0.05", "--shard", "full"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


@pytest.fixture(scope="module")
def by_gpus(tmp_path_factory):
    """What `--gpus 2` makes of a run; whoever starts the processes must come to the same."""
    folder = tmp_path_factory.mktemp("by_gpus")
    (folder / "model.py").write_text(MODEL)
    found = alone(folder, *BY_RUNS, "--gpus", "2", "--run-dir", "run")
    assert found["steps"] == 9 and len(found["measured"]["ranks"]) == 2
    return folder / "run"


def test_torchrun(folder, by_gpus):
    line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    codes, said, found = ended([started(folder, *line, "-m", "snugfit", *BY_RUNS, "--run-dir", "run", "--json")])
    assert codes == [0], said
    assert found["workload"]["settings"]["gpus"] == 2
    assert difference(by_gpus, folder / "run") == 0.0


def test_slurm(folder, by_gpus):
    def by_srun(number, ranks, port):
        there = {"SLURM_NTASKS": ranks, "SLURM_JOB_ID": port, "SLURM_STEP_NODELIST": "localhost"}
        return {**there, "SLURM_STEP_TASKS_PER_NODE": ranks, "SLURM_PROCID": number, "SLURM_LOCALID": number}

    codes, said, _ = both(folder, *BY_RUNS, "--run-dir", "run", joined=by_srun)
    assert codes == [0, 0], said
    assert difference(by_gpus, folder / "run") == 0.0


def test_two_machines(folder, by_gpus):
    line = [*BY_RUNS, "--nodes", "2", "--rdzv", f"127.0.0.1:{free_port()}", "--run-dir", "run", "--json"]
    machines = [started(folder, *command(*line)) for _ in range(2)]
    told = [one.communicate(timeout=patience.SECONDS) for one in machines]
    assert [one.returncode for one in machines] == [0, 0], told
    (found,) = (json.loads(out) for out, _ in told if out)  # the machine of the first process prints it
    assert found["workload"]["settings"]["nodes"] == 2
    assert difference(by_gpus, folder / "run") == 0.0


def test_a_machine_that_does_not_come_is_one_message(folder):
    line = [*RUN, "--nodes", "2", "--rdzv", f"127.0.0.1:{free_port()}", "--rdzv-timeout", "3", "--run-dir", "run"]
    said = alone(folder, *line, code=2)
    assert said.count("snugfit: ") == 1 and "2 machines did not meet at 127.0.0.1" in said and "within 3 s" in said


def test_a_budget_is_planned_for_each_process_and_sharing_with_it(folder):
    found = alone(folder, *of_model("build", RUN), "--gpus", "2", "--budget", "100KiB", "--run-dir", "run")
    budget = 100 * 1024
    assert found["recipe"]["shard"] != "none" and found["predicted"]["peak_tensor_bytes"] <= budget
    # gloo's threads let go of what they have sent whenever they run, so how much is over is not the same each time.
    over = max(one["peak_tensor_bytes"] for one in found["measured"]["ranks"]) - budget
    assert found["over_budget_bytes"] == max(0, over)


def test_a_call_in_python_trains_the_model_that_was_given(tmp_path):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(12, 8), torch.randint(3, (12,)))
    model, same = (nn.Sequential(nn.Linear(8, 3)) for _ in range(2))
    same.load_state_dict(model.state_dict())
    settings = {"loss": nn.CrossEntropyLoss(), "optimizer": "sgd", "lr": 0.1, "batch_size": 6, "max_steps": 3}
    settings |= {"evaluate": False, "progress": False, "device": "cpu"}
    result = snugfit.train(model, (data, None), gpus=2, run_dir=tmp_path / "two", **settings)
    assert result.model is model and result.steps == 3
    snugfit.train(same, (data, None), run_dir=tmp_path / "one", **settings)
    for one, other in zip(model.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.skipif(sys.platform != "linux", reason="limits a process's memory by what /proc says it has")
def test_memory_that_runs_out_in_one_process_is_answered_by_all(folder):
    run = [
        *of_model("large"),
        "--max-steps",
        "2",
        "--save-every",
        "1",
        "--optimizer",
        "sgd",
        "--lr",
        "0.05",
        "--no-evaluate",
    ]
    alone(folder, *run, "--run-dir", "one")
    codes, said, _ = both(folder, *run, "--shard", "full", "--run-dir", "two", LITTLE_MEMORY="1")
    assert 3 in codes and said.count("ran out of memory") == 1, said
    # By itself: all are started again, with half the microbatch, until it fits.
    processes = [started(folder, *command(*run, "--gpus", 2, "--run-dir", "three", "--json"), LITTLE_MEMORY="1")]
    codes, said, found = ended(processes)
    assert codes == [0], said
    assert said.count("on process 1 of 2") == said.count("All begin again") > 0
    assert found["recipe"]["microbatch_size"] == 4 and found["fidelity"]["level"] == "exact"
    assert difference(folder / "one", folder / "three") < 1e-6
    # By hand, where somebody else has started them.
    codes, said, found = both(folder, "train", "--run-dir", "two", "--resume", LITTLE_MEMORY="1")
    assert codes == [0, 0] and "All begin again" in said, said
    assert difference(folder / "three", folder / "two") == 0.0


@pytest.mark.parametrize("how", ["error", "exit"])
def test_a_process_that_ends_by_itself_ends_the_others_with_what_is_saved(folder, how):
    line = command(*of_model("breaks"), "--gpus", "2", "--run-dir", "two")
    launcher = started(folder, *line, BREAKS=how)
    said = launcher.communicate(timeout=patience.SECONDS)[1]
    assert launcher.returncode == 4
    assert said.count("snugfit: process 1 ended with exit code") == 1 and "step-00000003.ckpt" in said
    assert ("KeyError: 'mine'" in said) == (how == "error")


def until_saved(folder, launcher):
    until = time.monotonic() + patience.SECONDS
    while not (folder / "two" / ".saved").exists():
        assert launcher.poll() is None and time.monotonic() < until
        time.sleep(0.05)


def test_ctrl_c_stops_all_after_the_same_step_and_says_so_once(folder):
    line = command(*RUN, "--max-steps", "100000", "--no-evaluate", "--gpus", "2", "--run-dir", "two", "--json")
    launcher = started(folder, *line)
    try:
        until_saved(folder, launcher)
        launcher.send_signal(signal.SIGINT)
        out, said = launcher.communicate(timeout=patience.SECONDS)
    finally:
        launcher.kill()
    assert (launcher.returncode, out) == (130, ""), said
    assert (
        said.count("snugfit: stopped after step") == 1 == said.count("Go on with: snugfit train --run-dir two --resume")
    )


def test_a_killed_process_ends_the_others(folder):
    line = command(*RUN, "--max-steps", "100000", "--no-evaluate", "--gpus", "2", "--run-dir", "two")
    launcher = started(folder, *line, WRITE_NUMBERS="yes")
    try:
        until_saved(folder, launcher)
        processes = [int((folder / f"process-{rank}").read_text()) for rank in range(2)]
        os.kill(processes[1], signal.SIGKILL)
        _, said = launcher.communicate(timeout=patience.SECONDS)
    finally:
        launcher.kill()
    assert launcher.returncode == 4, said
    assert said.count("snugfit: ") == 1, said
    assert "process 1 was ended by SIGKILL" in said and "--resume" in said and "Traceback" not in said
    assert not any(Path(f"/proc/{one}").exists() for one in processes)
