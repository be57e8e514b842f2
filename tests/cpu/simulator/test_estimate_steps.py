"""`estimate(step=, steps=)`: how often a hand-written step is called, and what that changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import snugfit
from snugfit import InputError

PERIOD = 3
GENERATOR_STATE = 2 * 4 * (64 * 256 + 256)
"""AdamW's moments of the generator, in bytes."""


def _estimate(steps):
    """Estimates a GAN whose discriminator trains at each call and whose generator at every third."""
    made, calls = [], [0]

    def step(models, _, batch):
        if not made:
            made.extend(torch.optim.AdamW(models[name].parameters()) for name in ("g", "d"))
        g_optimizer, d_optimizer = made
        d_optimizer.zero_grad()
        models["d"](models["g"](batch).detach()).mean().backward()
        d_optimizer.step()
        calls[0] += 1
        if calls[0] % PERIOD == 0:
            g_optimizer.zero_grad()
            models["d"](models["g"](batch)).mean().backward()
            g_optimizer.step()

    models = nn.ModuleDict({"g": nn.Linear(64, 256), "d": nn.Linear(256, 64)})
    batch = torch.empty(8, 64, device="meta")
    given = {} if steps is None else {"steps": steps}
    return snugfit.estimate(models, batch, step=step, optimizer=None, device="rtx-4090", **given)


def test_steps_say_how_often_a_step_is_called():
    two, seven = _estimate(None), _estimate(2 * PERIOD + 1)
    assert (two.steps, seven.steps) == (2, 7)
    assert seven.to_mapping()["steps"] == 7
    assert "the first 7; what is done only later" in seven.card()
    more = seven.anatomy_bytes["optimizer_state"] - two.anatomy_bytes["optimizer_state"]
    assert GENERATOR_STATE <= more <= GENERATOR_STATE + 4096, "two calls never train the generator"


def test_time_and_operations_are_those_of_whole_periods():
    once, third = _estimate(1).flops, _estimate(PERIOD).flops
    seven = _estimate(2 * PERIOD + 1)
    with_generator = 2 * third - once  # calls 2 and 3, on average
    assert with_generator > once
    assert seven.flops == (4 * once + 2 * with_generator) // 6
    assert seven.step_seconds > 0


def test_one_call_is_the_first():
    one = _estimate(1)
    assert one.steps == 1 and one.peak_step == 0 and one.step_seconds > 0


@pytest.mark.parametrize("steps", [0, -1, 1001, 2.0, True, "3"])
def test_steps_that_cannot_be(steps):
    with pytest.raises(InputError, match="steps is"):
        _estimate(steps)


def test_steps_belong_to_a_hand_written_step():
    def loss(output, batch):
        return output.mean()

    with pytest.raises(InputError, match="no step= is given"):
        snugfit.estimate(nn.Linear(2, 2), torch.empty(4, 2), loss=loss, steps=3)
    assert snugfit.estimate(nn.Linear(2, 2), torch.empty(4, 2), loss=loss, device="cpu").steps is None
