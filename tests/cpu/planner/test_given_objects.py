"""What belongs to the person who asks is after a plan, and after the look before the first microbatches, what it was."""

import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from snugfit import Recipe
from snugfit.planner import separable

BATCH = torch.randn(64, 16), torch.arange(64) % 10
LOGGED = []


class Net(nn.Module):
    """Keeps a bank of features, noise of its own, a teacher that follows, and a count."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.teacher = nn.Linear(16, 10), nn.Linear(16, 10).requires_grad_(False)
        self.bank, self.passes, self.noise = [], 0, torch.Generator().manual_seed(3)

    def forward(self, x):
        self.passes += 1
        self.bank.append(len(x))
        with torch.no_grad():
            self.teacher.weight.lerp_(self.layer.weight, 0.1)
        torch.rand(1, generator=self.noise)
        return self.layer(x)


class CachedLoss:
    """As open_clip's loss, which keeps the labels of the last size."""

    def __init__(self):
        self.size, self.labels = 0, {}

    def __call__(self, output, batch):
        if self.size != len(output):
            self.labels["cpu"], self.size = torch.arange(len(output)), len(output)
        LOGGED.append(self.size)
        return F.cross_entropy(output, batch[1]) + 0 * self.labels["cpu"].sum()


def counting(loss):
    """The loss as a closure that counts."""
    calls, seen = 0, []

    def counted(output, batch):
        nonlocal calls
        calls += 1
        seen.append(len(output))
        return loss(output, batch)

    return counted, lambda: (calls, list(seen))


def state(model, loss):
    generator = model.noise.get_state().tolist()
    kept = loss.size, {name: labels.tolist() for name, labels in loss.labels.items()}
    return list(model.bank), model.passes, generator, model.teacher.weight.tolist(), kept, list(LOGGED)


def test_a_plan_leaves_them_alone(pool, monkeypatch):
    tried, check = [], separable._checked
    monkeypatch.setattr(separable, "_checked", lambda *args: tried.append(check(*args)) or tried[0])
    model, loss = Net(), CachedLoss()
    counted, counts = counting(loss)
    model(BATCH[0])
    loss(model.layer(BATCH[0]), BATCH)
    before, version = state(model, loss), torch.random.get_rng_state()
    snugfit.plan(
        model,
        BATCH,
        loss=counted,
        optimizer="sgd",
        budget="16MiB",
        device="cpu",
        pool=pool,
        pin={"microbatch_size": 16},
        forbid=["checkpoint", "inplace", "step_in_backward", "offload_activations"],
    )
    assert [found.separation.separates for found in tried] == [True]
    assert state(model, loss) == before and counts() == (0, [])
    assert torch.equal(torch.random.get_rng_state(), version)
    assert float(loss(model.layer(BATCH[0]), BATCH)) > 0  # and it still works on the batch


def test_the_look_before_microbatches_leaves_them_alone():
    """After one step they are what four passes make of them, and not eleven."""
    model, loss = Net(), CachedLoss()
    counted, counts = counting(loss)
    trainer = snugfit.prepare(model, Recipe(microbatch_size=16), loss=counted, optimizer="sgd", lr=0.0, device="cpu")
    del LOGGED[:]
    trainer.step(BATCH)
    alike, own = Net(), CachedLoss()
    for _ in range(4):
        alike(BATCH[0][:16])
    own.size, own.labels = 16, {"cpu": torch.arange(16)}
    assert state(model, loss) == state(alike, own) and counts() == (4, [16] * 4) and LOGGED == [16] * 4
