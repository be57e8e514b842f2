"""Where the model is built is the plan's choice where building decides what a run needs, and only there."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.units import MIB

WIDTH, SAMPLES = 256, 4


class Narrow(nn.Module):
    """Its weights are most of what training takes."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))

    def forward(self, x):
        return self.layers(x)


def loss(output, batch):
    return F.cross_entropy(output.float(), batch[1])


def batch():
    return torch.zeros(SAMPLES, WIDTH), torch.zeros(SAMPLES, dtype=torch.int64)


GIVEN = {"loss": loss, "optimizer": "sgd", "evaluate": False}
PINS = {"precision": "bf16-true", "step_in_backward": True}
BUILT_IN_FP32 = 8 * (WIDTH * WIDTH + WIDTH) * 4


def planned(model, budget, **changes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return snugfit.plan(model, batch(), device="cpu", budget=budget, pin=PINS, **{**GIVEN, **changes})


def test_a_build_that_would_be_the_peak_is_made_in_16_bits_and_takes_what_is_predicted():
    budget = int(0.8 * BUILT_IN_FP32)
    plan = planned(Narrow, budget)
    assert plan.recipe.init == "device"
    assert "without it a step takes" in plan.reasons["init"]
    warm_up()
    events = AllocatorEvents()
    events.start()
    trainer = snugfit.prepare(Narrow, plan, device="cpu", **GIVEN)
    for _ in range(2):
        trainer.step(batch())
    events.stop()
    assert trainer.recipe == plan.recipe
    assert events.peak_bytes < budget

    assert events.peak_bytes == pytest.approx(plan.estimate.peak_allocated_bytes, rel=0.02)


def test_a_model_that_stands_already_is_planned_as_it_is():
    with pytest.raises(snugfit.DoesNotFitError):
        planned(Narrow(), int(0.8 * BUILT_IN_FP32))
    plan = planned(Narrow(), 2 * BUILT_IN_FP32 + MIB)
    assert plan.recipe.init == "host"
    assert "built already" in plan.reasons["init"]


def test_host_memory_may_decide_it_on_a_card():
    """The host holds all of the model while it is built there; on the device it holds none of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = snugfit.plan(
            Narrow, batch(), device="a100-40gb", budget="2GiB", host_budget=int(0.5 * BUILT_IN_FP32), **GIVEN
        )
    assert plan.recipe.init == "device"
    assert plan.estimate.host_bytes <= 0.5 * BUILT_IN_FP32
