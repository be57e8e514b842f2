"""Runs with two processes, joined by their environment as torchrun joins them: what they do, save, and say."""

from __future__ import annotations

import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from run_code import run_code
from several_processes import (
    MODEL,
    RUN,
    alone,
    both,
    by_torchrun,
    command,
    difference,
    ended,
    free_port,
    of_model,
    started,
)

from snugfit.errors import InputError
from snugfit.runs import joining
from snugfit.runs.standing import Rank, first_host, rank_here


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


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
def test_resume_is_bitwise(folder, shard):
    run = [*RUN, "--shard", shard, "--model-arg", "dropout=0.2"]
    assert both(folder, *run, "--run-dir", "whole")[0] == [0, 0]
    assert both(folder, *run, "--max-steps", "5", "--run-dir", "parts")[0] == [0, 0]
    assert both(folder, "train", "--run-dir", "parts", "--resume", "--max-steps", "9")[0] == [0, 0]
    assert difference(folder / "whole", folder / "parts") == 0.0


def test_the_last_batch_may_be_smaller_than_the_number_of_processes(folder):
    run = [*RUN, "--samples", "33", "--max-steps", "6", "--optimizer", "sgd", "--lr", "0.05"]  # 16, 16 and 1
    alone(folder, *run, "--run-dir", "one")
    assert both(folder, *run, "--max-steps", "2", "--run-dir", "two")[0] == [0, 0]
    assert both(folder, "train", "--run-dir", "two", "--resume", "--max-steps", "6")[0] == [0, 0]
    assert difference(folder / "one", folder / "two") < 1e-6


def test_another_number_of_processes_goes_on_with_the_same_update(folder):
    run = [*RUN, "--optimizer", "adamw", "--clip-norm", "1"]
    alone(folder, *run, "--run-dir", "one")
    assert both(folder, *run, "--shard", "full", "--max-steps", "4", "--run-dir", "two")[0] == [0, 0]
    alone(folder, "train", "--run-dir", "two", "--resume", "--max-steps", "6", "--gpus", "1")
    assert both(folder, "train", "--run-dir", "two", "--resume", "--max-steps", "9")[0] == [0, 0]
    assert difference(folder / "one", folder / "two") < 1e-5


@pytest.mark.parametrize("saved_by", [both, alone])
def test_a_model_that_has_changed_since_is_refused(folder, saved_by):
    saved_by(folder, *RUN, "--max-steps", "3", "--run-dir", "two")
    (folder / "model.py").write_text(MODEL.replace("nn.Linear(width, width), nn.ReLU()", "nn.ReLU()"))
    codes, said, _ = both(folder, "train", "--run-dir", "two", "--resume", "--max-steps", "6")
    assert codes == [2, 2] and "4.weight is gone" in said and "Put back what builds it" in said, said
    assert said.count("model.py has changed since") == 1


def test_microbatches_that_change_the_update_are_found_before_the_first_step(folder):
    run = [*RUN, "--microbatch-size", "4", "--max-steps", "1", "--no-evaluate"]
    codes, said, found = both(folder, *of_model("coupled", run), "--shard", "full", "--run-dir", "coupled")
    assert codes == [0, 0] and said.count("changes the update of this model and loss") == 1, said
    assert found["fidelity"]["level"] == "different"
    codes, said, found = both(folder, *run, "--run-dir", "exact")
    assert codes == [0, 0] and "changes the update" not in said
    assert found["fidelity"]["level"] == "exact" and not found["fidelity"]["unchecked"]


# -- what goes wrong is one message, and the same exit code in each process


def test_a_loss_that_is_not_finite_in_one_process_ends_all_at_the_same_step(folder):
    codes, said, _ = both(folder, *RUN, "--run-dir", "two", NAN_IN="1")
    assert codes == [4, 4]
    assert said.count("snugfit: step 5: the loss is nan") == 1 == said.count("--resume"), said
    assert "Its update was not taken" in said and "step-00000003.ckpt" in said


@pytest.mark.parametrize(
    ("each", "words"),
    [
        (lambda number: ["model.py:other" if number else "model.py:build"], "process 1 of 2 has another model"),
        (lambda number: ["model.py:build", "--samples", 101 + number], "process 1 of 2 has another data"),
        (lambda number: ["model.py:build", "--lr", 0.1 * (1 + number)], "process 1 of 2 has another training settings"),
        (lambda number: ["model.py:build", "--batch-size", 1], "cannot be shared by 2 GPUs"),
        (lambda number: ["model.py:scalar", "--shard", "full"], "'2.scale' has no dimension"),
    ],
    ids=["model", "data", "settings", "more processes than samples", "parameter without a dimension"],
)
def test_what_cannot_be_trained_together_is_one_message(folder, each, words):
    codes, said, _ = both(folder, "train", "--run-dir", "two", *RUN[2:], each=each)
    assert codes == [2, 2]
    assert said.count("snugfit: ") == 1 and words in said, said


def test_a_missing_process_is_named(folder):
    codes, said, _ = both(folder, *RUN, "--rdzv-timeout", "2", ranks=3)
    assert codes == [2, 2]
    assert said.count("did not come within 2 s") == 1 and "number 2" in said


def test_a_port_in_use_is_said_by_each_process_that_meets_it(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        each = [
            started(folder, *command(*RUN, "--rdzv-timeout", "3"), **by_torchrun(number, 2, port))
            for number in range(2)
        ]
        codes, said, _ = ended(each)
    assert codes == [2, 2]
    assert f"process 0 of 2 cannot listen at 127.0.0.1:{port}" in said and "Give another port" in said
    assert f"process 1 of 2 found nobody at 127.0.0.1:{port} within 3 s" in said


# -- where a process stands


def variables(patch, **given):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        patch.delenv(name, raising=False)
    for name, value in given.items():
        patch.setenv(name, str(value))


@pytest.mark.parametrize(
    ("per_node", "where"),
    [
        ({"SLURM_NTASKS_PER_NODE": "4"}, (5, 8, 1, 4)),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, (5, 8, 1, 4)),
        ({"SLURM_TASKS_PER_NODE": "4(x2)"}, (5, 8, 1, 4)),
        ({}, (5, 8, 1, 8)),
    ],
    ids=str,
)
def test_slurm_says_where_a_process_stands(monkeypatch, per_node, where):
    variables(monkeypatch, SLURM_PROCID=5, SLURM_NTASKS=8, SLURM_LOCALID=1, **per_node)
    rank = rank_here()
    assert (rank.number, rank.count, rank.local_number, rank.local_count) == where


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node[01-04,7],other", "node01"),
        ("gpu7", "gpu7"),
        ("a-[3,5]", "a-3"),
        ("n1,n2", "n1"),
        ("r[1-2]n[05-06]", "r1n05"),
    ],
)
def test_the_first_host_of_slurms_list(nodes, first):
    assert first_host(nodes) == first


def test_torchruns_single_thread_is_a_default_and_a_persons_number_is_not(monkeypatch):
    import torch

    chosen = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(joining, "threads_each", lambda processes: 16 // processes)
    rank = Rank(number=0, count=4, local_number=0, local_count=4, ours=False)
    for said, by_torchrun_, expected in (
        ({"OMP_NUM_THREADS": "1"}, True, [4]),  # nobody has said a number
        ({"OMP_NUM_THREADS": "2"}, True, []),
        ({"OMP_NUM_THREADS": "1"}, False, []),
        ({}, False, [4]),
    ):
        chosen.clear()
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
        variables(monkeypatch, **said, **({"TORCHELASTIC_RUN_ID": "none"} if by_torchrun_ else {}))
        joining._use_threads(rank)
        assert chosen == expected, said


def test_a_number_beyond_the_count_is_an_error(monkeypatch):
    variables(monkeypatch, RANK=2, WORLD_SIZE=2)
    with pytest.raises(InputError, match="counted from 0"):
        rank_here()


def test_who_asks_late_hears_that_the_first_process_has_told():
    """It holds the store, and ends as soon as it has told of the error; the other one is slower here."""
    both_ask = """
import os, sys, time
from datetime import timedelta
import torch.distributed as dist
from snugfit.runs import others
from snugfit.runs.standing import Rank

number = {number}
store = dist.TCPStore("127.0.0.1", {port}, 2, number == 0, timeout=timedelta(seconds=60), wait_for_workers=False)
rank = Rank(number=number, count=2, local_number=number, local_count=2, ours=False)
others.current = others.Others(rank, store)
others.current.wait_for_all(60)
time.sleep(number)
print(others.current.speaks())
others.end_at_once(2)
"""
    port = free_port()
    with ThreadPoolExecutor() as at_once:
        done = [*at_once.map(run_code, [both_ask.format(number=number, port=port) for number in range(2)])]
    assert [(one.returncode, one.stdout) for one in done] == [(2, "True\n"), (2, "False\n")], done


ONE_OF_TWO = "others.Others(others.Rank(number=1, count=2, local_number=1, local_count=2, ours=False), None)"


@pytest.mark.parametrize(("among_others", "code"), [(ONE_OF_TWO, 7), ("None", -signal.SIGABRT)])
def test_who_has_lost_the_others_ends_before_python_takes_everything_apart(among_others, code):
    """What is taken apart may abort: here a module's object, in truth a thread of gloo that lets go of a tensor."""
    done = run_code(
        f"""
import atexit, os, sys, types
from snugfit.runs import others

class Held:
    def __del__(self, abort=os.abort):
        abort()

sys.modules["held"] = types.ModuleType("held")
sys.modules["held"].one = Held()
others.current = {among_others}
atexit.register(print, "left")
print("said")
others.end_at_once(7)
sys.stdout.flush()
"""
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.split() == ["said", "left"]
