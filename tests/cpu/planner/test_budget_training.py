"""For real on the CPU: training within a half, a quarter and an eighth of what plain training takes.

Measured peak tensor bytes stay under each budget, the losses are those of plain training, and where a plan is predicted
to be clearly slower than another one its step is more work (what it takes in seconds is measured by
benchmarks/plan_quality.py).
"""

import planned
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from snugfit.devices import device_named
from snugfit.fake_device.personality import Personality
from snugfit.measure.allocator_events import warm_up
from snugfit.measure.meter import meter_for
from snugfit.operators.host_speeds import host_speeds
from snugfit.planner.probe import Place
from snugfit.recipe import Recipe
from snugfit.training.prepare import prepare

SAMPLES, TOKENS, STEPS = 48, 64, 3
CLEARLY = 1.25
"""Plans whose predicted times differ by less may come in any order."""


def build():
    torch.manual_seed(3)
    return planned.Stack(width=48, blocks=8)


def data():
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(SAMPLES, TOKENS, 16, generator=generator), torch.randint(0, 5, (SAMPLES,), generator=generator))
        for _ in range(STEPS)
    ]


def trained(recipe):
    """Losses, peak tensor bytes, and operators and floating-point operations of a steady step."""
    batches = data()
    warm_up()
    meter = meter_for("cpu")
    meter.start()
    model = build()
    trainer = prepare(model, recipe, loss=planned.cross_entropy, optimizer="adamw", lr=1e-3, device="cpu")
    losses = []
    for batch in batches:
        losses.append(float(trainer.step(batch)))
        meter.after_step(trainer.steps_done)
    peak = meter.result(trainer.peak_host_bytes)["peak_tensor_bytes"]
    with FlopCounterMode(display=False) as flops, Operators() as operators:
        trainer.step(batches[0])
    return losses, peak, (operators.count, flops.get_total_flops())


class Operators(TorchDispatchMode):
    """Counts what is dispatched."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def planner(planning_pool):
    torch.set_num_threads(1)
    place = Place(card=device_named("cpu"), personality=Personality(kind="cpu"), speeds=host_speeds())
    batch = planned.batch_of(SAMPLES, TOKENS)
    with planned.planner(planning_pool, place=place, model=build, batch=batch) as made:
        yield made


def test_half_a_quarter_an_eighth(planner):
    # The batch itself was there before the run, so the first step's measurement is that of the training.
    losses, plain, work = trained(Recipe())
    rows = [(1, planner.simulations.need(Recipe()).seconds, work)]
    for part in (2, 4, 8):
        plan = planner.at(plain // part)
        theirs, peak, work = trained(plan.recipe)
        assert peak <= plan.budget_bytes, (part, plan.recipe)
        assert peak <= plan.estimate.peak_allocated_bytes * 1.01
        assert theirs == pytest.approx(losses, rel=1e-4)
        rows.append((part, plan.step_seconds, work))
    plans = rows[1:]
    for one in plans:
        for other in plans:
            if one[1] > CLEARLY * other[1]:
                assert any(mine > others for mine, others in zip(one[2], other[2], strict=True)), rows
