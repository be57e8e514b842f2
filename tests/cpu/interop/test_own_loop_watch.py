"""Loops of one's own under `watch_memory`: measured steps, the alarm where something grows, silence where nothing does."""

import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import memory_loops
import pytest
import torch

import __main__
import snugfit
from snugfit.errors import DoesNotFitError, InputError, SnugfitWarning
from snugfit.process_memory import heap_in_use_bytes

STEPS = 80


def watched(loop, steps=STEPS, **settings):
    model = memory_loops.network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with snugfit.watch_memory(model, optimizer, predict=False, **settings) as watch:
        loop(model, optimizer, steps)
    return watch.report


@pytest.mark.parametrize("loop", memory_loops.QUIET, ids=lambda loop: loop.__name__)
def test_loops_that_do_not_leak_are_silent(loop):
    with warnings.catch_warnings():
        warnings.simplefilter("error", SnugfitWarning)
        report = watched(loop)
    assert report.leak is None
    assert report.steps == STEPS
    assert len(report.step_bytes) >= 12


def test_a_leak_is_named_by_module_line_and_holder():
    with pytest.warns(SnugfitWarning, match=r"memory grows step by step, by 320 KiB a step") as caught:
        report = watched(memory_loops.leaking)
    row = report.leak.rows[0]
    assert row.module == "0" and row.operator == "aten.addmm.default"
    path, _, number = row.line.rpartition(":")
    assert path == memory_loops.__file__
    assert "kept.append(model[0](rows))" in Path(path).read_text().splitlines()[int(number) - 1]
    assert report.leak.holder.endswith("(kept)")
    assert "memory_loops.py" in str(caught[0].message)


@pytest.mark.skipif(heap_in_use_bytes() is None, reason="this system does not tell what a process has allocated")
def test_a_leak_that_is_no_tensor_is_told():
    with pytest.warns(SnugfitWarning, match="No tensors stay"):
        report = watched(memory_loops.leaking_arrays)
    assert report.leak.per_step_bytes == pytest.approx(800_000, rel=0.1)
    assert report.leak.rows == ()


def test_the_alarm_can_be_left_out_and_steps_over_the_budget_are_told():
    with pytest.warns(SnugfitWarning, match=r"step 1 took .* more than the budget of 1\.00 MiB"):
        report = watched(memory_loops.leaking, leak_alarm=False, budget="1MiB")
    assert report.leak is None


def test_measured_bytes_are_those_of_the_tensors():
    weights = sum(one.numel() * 4 for one in memory_loops.network().parameters())
    report = watched(memory_loops.plain)
    assert report.measured_bytes > 4 * weights  # gradients and two moments beside them
    assert report.step_bytes[2] == report.step_bytes[3] == report.step_bytes[12]


def test_an_optimizer_that_steps_in_backward_is_measured_step_by_step():
    report = watched(memory_loops.stepping_in_backward)
    assert list(report.step_bytes) == list(range(1, len(report.step_bytes) + 1))
    assert report.step_bytes[2] == report.step_bytes[3] == report.step_bytes[12]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"budget": "lots"}, "budget 'lots' is not understood"),
        ({"budget": 0}, "must be more than 0 bytes"),
        ({"on_exceed": "stopp"}, "did you mean 'stop'"),
        ({"assume": {"sparsity": 1}}, "'sparsity' is unknown"),
    ],
)
def test_wrong_settings_are_told_at_once(settings, said):
    with pytest.raises(InputError, match=said):
        snugfit.watch_memory(memory_loops.network(), **settings)


def test_what_is_no_model_is_told():
    with pytest.raises(InputError, match="model is a str"):
        snugfit.watch_memory("bert-base")


def test_more_than_the_budget_stops_before_anything_is_trained(monkeypatch):
    def predicted(script, arguments, *, device, assume):
        assert (script, arguments, device) == (__main__.__file__, ["--epochs", "3"], "cpu")
        return SimpleNamespace(total_bytes=3 * 2**20, anatomy_bytes={"activations": 2**21, "weights": 2**20})

    monkeypatch.setattr("snugfit.simulator.own_script.estimate_script", predicted)
    monkeypatch.setattr(__main__, "__spec__", None)  # as of a file; the tests may be run by `python -m`
    monkeypatch.setattr("sys.argv", ["train.py", "--epochs", "3"])
    monkeypatch.setattr(__main__, "__file__", "train.py", raising=False)  # a process of pytest-xdist has none
    model = memory_loops.network()
    with pytest.raises(
        DoesNotFitError,
        match=r"2\.00 MiB more than the budget of 1\.00 MiB\. Largest: activations 2\.00 MiB.*Nothing was trained",
    ):
        snugfit.watch_memory(model, budget="1MiB", on_exceed="stop").__enter__()


SCRIPT = """
import torch
import snugfit
model = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 10))
optimizer = torch.optim.AdamW(model.parameters())
with snugfit.watch_memory(model, optimizer, budget="1MiB") as watch:
    for _ in range(6):
        model(torch.randn(128, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
print(watch.report.ratio, watch.report.steps)
"""


def test_a_script_is_predicted_by_itself(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ratio, steps = map(float, done.stdout.split())
    assert ratio == pytest.approx(1, abs=0.03)
    assert steps == 6
    assert "more than the budget of 1.00 MiB" in done.stderr
    assert "memory: predicted" in done.stderr.splitlines()[-1]
