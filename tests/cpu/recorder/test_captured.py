"""Tensors that losses and forward functions hold by themselves: found wherever they are, and counted."""

import functools
import random
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from snugfit.measure.allocator_events import AllocatorEvents

BATCH = torch.randn(16, 8), torch.arange(16) % 3
TEACHER_BYTES = (8 * 256 + 256 + 256 * 3 + 3) * 4


def small():
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))


def large():
    return nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 3)).eval().requires_grad_(False)


def closure():
    teacher = large()
    return {"loss": lambda output, batch: F.mse_loss(output, teacher(batch[0]))}


def attribute():
    class Distillation:
        def __init__(self):
            self.parts = {"teacher": [large()]}

        def __call__(self, output, batch):
            return F.mse_loss(output, self.parts["teacher"][0](batch[0]))

    return {"loss": Distillation()}


def partial():
    def loss(output, batch, teacher):
        return F.mse_loss(output, teacher(batch[0]))

    return {"loss": functools.partial(loss, teacher=large())}


def default_argument():
    return {"loss": lambda output, batch, teacher=large(): F.mse_loss(output, teacher(batch[0]))}  # noqa: B008


def by_forward():
    teacher = large()
    return {
        "forward": lambda model, batch: (model(batch[0]), teacher(batch[0])),
        "loss": lambda output, batch: F.mse_loss(*output),
    }


def bound_method():
    class Task(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher = large()

        def loss(self, output, batch):
            return F.mse_loss(output, self.teacher(batch[0]))

    return {"loss": Task().loss}


def global_of_a_module():
    code = (
        "import torch.nn.functional as F\ndef loss(output, batch):\n    return F.mse_loss(output, teacher(batch[0]))\n"
    )
    module = types.ModuleType("snugfit_test_globals")  # as a notebook has it: nothing that a worker could import
    exec(code, module.__dict__)
    module.teacher = large()
    return {"loss": module.loss}


STYLES = [closure, attribute, partial, default_argument, by_forward, bound_method, global_of_a_module]


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
@pytest.mark.parametrize("style", STYLES)
def test_a_teacher_is_found_and_counts_as_weights(pool, style, device):
    model = small()
    own = sum(weight.numel() * 4 for weight in model.parameters())
    found = snugfit.estimate(model, BATCH, device=device, pool=pool, **style())
    weights = found.anatomy_bytes["weights"]
    assert own + TEACHER_BYTES <= weights <= own + TEACHER_BYTES + 512 * 8  # a card rounds each tensor up to 512 bytes


def test_what_no_step_touches_takes_nothing(pool):
    unused = torch.zeros(10_000_000)
    used = torch.ones(3)

    def loss(output, batch):
        if len(batch) > 5:
            return unused.sum()
        return F.cross_entropy(output, batch[1], weight=used)

    plain = snugfit.estimate(small(), BATCH, device="cpu", pool=pool, loss=lambda o, b: F.cross_entropy(o, b[1]))
    found = snugfit.estimate(small(), BATCH, device="cpu", pool=pool, loss=loss)
    assert plain.peak_allocated_bytes <= found.peak_allocated_bytes <= plain.peak_allocated_bytes + 64


class Spare(nn.Module):
    """Keeps networks where torch does not look for them: in a dict and a list of plain attributes."""

    def __init__(self):
        super().__init__()
        self.kinds = {"small": small(), "large": [large()]}
        self.net = self.kinds["small"]

    def forward(self, x):
        return self.net(x)


def test_what_the_model_keeps_unused_is_in_the_memory_of_a_run_on_cpu(pool):
    def loss(output, batch):
        return F.cross_entropy(output, batch[1])

    def peak(model, device):
        return snugfit.estimate(model, BATCH, device=device, pool=pool, loss=loss).peak_allocated_bytes

    assert peak(Spare(), "cpu") == peak(small(), "cpu") + TEACHER_BYTES
    assert peak(Spare(), "rtx-4090") == peak(small(), "rtx-4090")  # nobody moves it to the card


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
@pytest.mark.parametrize(
    "held",
    [
        torch.tensor([1.0, 2.0, 3.0]),
        torch.tensor(2.0),
        nn.Parameter(torch.ones(3), requires_grad=False),
        torch.ones(3, requires_grad=True),
        torch.ones(6)[::2],
        torch.tensor([1, 2, 3]),
        torch.tensor([True, False, True]),
    ],
)
def test_any_tensor_may_be_held(pool, held, device):
    def loss(output, batch):
        return F.cross_entropy(output * held, batch[1])

    assert snugfit.estimate(small(), BATCH, device=device, pool=pool, loss=loss).peak_allocated_bytes > 0


def test_whole_numbers_keep_their_values(pool):
    sizes = torch.tensor([2, 5])

    def loss(output, batch):
        assert [int(size) for size in sizes] == [2, 5]
        return output[: sizes[1]].sum()

    assert snugfit.estimate(small(), BATCH, device="rtx-4090", pool=pool, loss=loss).peak_allocated_bytes > 0


def test_tensors_that_share_a_storage_count_once(pool):
    table = torch.randn(4096, 3)
    halves = table[:2048], table[2048:]

    def loss(output, batch):
        return sum((output.sum() - half).square().mean() for half in halves)

    def alone(output, batch):
        return (output.sum() - table).square().mean()

    weights = [
        snugfit.estimate(small(), BATCH, device="cpu", pool=pool, loss=one).anatomy_bytes["weights"]
        for one in (loss, alone)
    ]
    assert weights[0] == weights[1]


def test_a_model_recorded_twice_finds_them_again(pool):
    """Microbatches that differ are recorded in full after the short recording was made for nothing."""
    teacher = large()

    class Drops(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = small(), nn.Linear(3, 3)

        def forward(self, x):
            y = self.first(x)
            return self.second(y) if random.random() < 0.5 else y

    found = snugfit.estimate(
        Drops(), BATCH, device="cpu", pool=pool, recipe=snugfit.Recipe(microbatch_size=1),
        loss=lambda output, batch: F.mse_loss(output, teacher(batch[0])),
    )  # fmt: skip
    own = sum(weight.numel() * 4 for weight in Drops().parameters())
    assert found.anatomy_bytes["weights"] >= TEACHER_BYTES + own


def measured(model, batch, arguments):
    events = AllocatorEvents()
    events.start()
    held = arguments()
    trainer = snugfit.prepare(model(), device="cpu", **held)
    for number in range(2):
        given = batch()
        trainer.step(given)
        if number == 0:
            trainer.model.eval()
            with torch.no_grad():
                trainer.evaluate_batch(given)
            trainer.model.train()
    events.stop()
    return events.peak_bytes


@pytest.mark.parametrize("style", [closure, attribute, by_forward])
def test_measured_and_predicted_agree(pool, style):
    def batch():
        return torch.randn(512, 8), torch.arange(512) % 3

    measured(small, batch, style)  # warm: the first run takes what torch keeps
    real = measured(small, batch, style)
    found = snugfit.estimate(small, batch(), device="cpu", pool=pool, **style())
    assert found.peak_allocated_bytes == pytest.approx(real, rel=0.01)


def test_a_plan_for_a_distillation_is_trained(pool):
    held = closure()
    found = snugfit.plan(small(), BATCH, budget="4MiB", device="cpu", pool=pool, **held)
    trainer = snugfit.prepare(small(), found.recipe, device="cpu", **held)
    assert torch.isfinite(trainer.step(BATCH))


def test_the_asking_process_keeps_its_tensors(pool):
    teacher = large()
    before = [weight.clone() for weight in teacher.parameters()]
    snugfit.estimate(small(), BATCH, device="cpu", pool=pool, loss=lambda o, b: F.mse_loss(o, teacher(b[0])))
    assert all(torch.equal(one, other) for one, other in zip(before, teacher.parameters(), strict=True))
    assert "snugfit.recorder.captured" not in sys.modules or type(teacher[0].weight) is nn.Parameter
