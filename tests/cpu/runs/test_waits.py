"""Waiting for data: what is counted, and what is advised. No test waits: clocks are moved by hand."""

import types

import pytest
import torch
from torch import nn

import snugfit
from snugfit.recipe import Recipe
from snugfit.runs import waits as module
from snugfit.runs.loop import Loop
from snugfit.runs.run_dir import RunDirectory
from snugfit.runs.waits import Waits, loading_report
from snugfit.workload import Workload
from snugfit.workloads.data import open_data
from snugfit.workloads.tasks import task_named


def report(waits, *, on_card=True, processors=8, **fields):
    return loading_report(waits, Recipe(**fields), on_card=on_card, processors=processors)


def waited(seconds=5.0, step_seconds=10.0, **more):
    return Waits(
        **{"step_seconds": step_seconds, "batches": 100, "late_batches": 100, "batch_seconds": seconds, **more}
    )


def test_every_batch_is_counted_and_the_first_of_an_epoch_apart(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))

    def batches():
        for seconds in (3.0, 0.5, 0.0, 0.25):
            now[0] += seconds
            yield seconds

    found = Waits()
    for _ in range(2):
        assert list(found.counted(batches())) == [3.0, 0.5, 0.0, 0.25]
        now[0] += 100  # what comes between epochs is nobody's wait
    assert (found.epochs, found.epoch_seconds) == (2, 6.0)
    assert (found.batches, found.late_batches, found.batch_seconds) == (6, 4, 1.5)


def test_a_batch_is_let_go_before_the_next_is_made():
    alive = []

    class Batch:
        def __init__(self):
            alive.append(self)

        def __del__(self):
            gone.append(1)

    gone: list[int] = []

    def batches():
        for index in range(3):
            assert len(gone) == index
            yield Batch()
            alive.clear()

    for batch in Waits().counted(batches()):
        alive.clear()
        del batch
    assert len(gone) == 3


def test_little_waiting_is_not_worth_a_word():
    found = report(waited(0.4))
    assert found["idle_share"] == pytest.approx(0.04) and found["advice"] is None
    assert found["wait_seconds"] == 0.4 and found["late_batches"] == 100
    assert report(Waits())["idle_share"] == 0.0


def test_batches_that_are_made_in_no_time_need_no_workers():
    quick = waited(5.0, late_batches=3)
    assert report(quick)["idle_share"] == pytest.approx(0.5) and report(quick)["advice"] is None
    assert report(quick, workers=1)["advice"] is not None


def test_a_card_that_works_on_does_not_wait():
    assert report(waited(5.0, device_seconds=4.9))["advice"] is None
    assert report(waited(5.0, device_seconds=1.0))["idle_share"] == pytest.approx(0.4)
    assert report(waited(5.0, device_seconds=4.9), on_card=False)["idle_share"] == pytest.approx(0.5)


def test_workers_are_as_many_as_loading_needs():
    found = report(waited(7.5))["advice"]  # loads 3 times as long as it computes
    assert found.startswith("The card waits for data in 75% of the time of its steps. The recipe has workers=0,")
    assert "try workers=4; pin_memory=True lets copies" in found
    assert "try workers=3;" in report(waited(7.5), processors=4)["advice"]
    more = report(waited(5.0), workers=2, pin_memory=True)["advice"]  # two load in 2 * 10 what takes 5 to compute
    assert "workers=2, pin_memory=True" in more and more.endswith("try workers=5.")


def test_workers_that_start_too_often_that_are_all_there_can_be_or_that_come_in_bursts():
    often = waited(0.1, epochs=20, epoch_seconds=4.0)
    assert "the start of the workers, 0.2 s each epoch, so take fewer" in report(often, workers=2)["advice"]
    assert "there are 4 processors" in report(waited(), workers=3, processors=4)["advice"]
    bursts = waited(late_batches=10)
    assert "only 10 of 100 batches came late" in report(bursts, workers=2, prefetch=4)["advice"]
    assert "prefetch=8" in report(bursts, workers=2, prefetch=4)["advice"]


def test_one_processor_cannot_load_beside_training():
    assert "share the one processor" in report(waited(), on_card=False, processors=1)["advice"]
    assert "try workers=1" in report(waited(), on_card=True, processors=1)["advice"]
    assert "pin_memory=True" not in report(waited(), on_card=False)["advice"].partition(": ")[2]


def test_a_run_reports_its_loading(tmp_path):
    task = task_named("image-classification")
    data = open_data("random", image_size=8, channels=1, num_classes=10, seed=1, samples=40)
    workload = Workload(batch_size=16, epochs=2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    trainer = snugfit.prepare(model, loss=task.loss, device="cpu", batch_size=16, epochs=2, max_steps=6)
    with RunDirectory.create(tmp_path, Recipe(), {}) as run:
        loop = Loop(trainer, data, task, run, total_steps=6)
        found = loop.train().loading
    assert workload.batch_size == loop.batch_size
    assert (loop.steps.waits.epochs, loop.steps.waits.batches) == (2, 4)
    assert loop.steps.waits.step_seconds > loop.steps.waits.batch_seconds + loop.steps.waits.epoch_seconds > 0
    assert found.keys() == {"wait_seconds", "epoch_start_seconds", "late_batches", "idle_share", "advice"}
    assert 0 < found["idle_share"] < 1 and torch.is_tensor(next(model.parameters()))
