"""Optimizers of a hand-written step: one that calls its closure, or several at a time."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from snugfit import InputError
from snugfit.measure.allocator_events import AllocatorEvents

BATCH = torch.randn(256, 64), torch.randint(0, 8, (256,))


def classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 8))


def with_closure(model, optimizer, batch):
    inputs, labels = batch

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    optimizer.step(closure)


def measured(build, step, steps):
    """Most bytes of torch's tensors in real steps, with the batch and the model that was built."""
    events = AllocatorEvents()
    events.start()
    batch = tuple(tensor.clone() for tensor in BATCH)
    model, optimizer = build()
    for _ in range(steps):
        step(model, optimizer, batch)
    events.stop()
    return events.peak_bytes


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("as_instance", [True, False])
def test_lbfgs_needs_its_whole_history(pool, search, as_instance):
    settings = {"max_iter": 3, "history_size": 5, "line_search_fn": search, "tolerance_change": 0, "tolerance_grad": 0}

    def make(parameters):
        return torch.optim.LBFGS(parameters, **settings)

    def build():
        model = classifier()
        return model, make(model.parameters())

    model, optimizer = build()
    found = snugfit.estimate(
        model, BATCH, step=with_closure, optimizer=optimizer if as_instance else make, device="cpu", pool=pool
    )
    assert any("LBFGS was taken to go on" in text for text in found.answered)
    peak = measured(build, with_closure, 5)
    if search is None:
        assert found.peak_allocated_bytes == pytest.approx(peak, rel=0.001)
    else:  # how many points it looks at depends on values; for a second one it keeps two gradients
        second = 2 * sum(weight.nbytes for weight in build()[0].parameters())
        assert 0.999 * peak < found.peak_allocated_bytes <= 1.001 * peak + second


def test_the_refusal_in_a_trainer_names_what_works(pool):
    model = classifier()
    with pytest.raises(InputError, match=r"predict it with snugfit\.estimate\(\.\.\., step=fn\)"):
        snugfit.prepare(
            model, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.LBFGS(model.parameters()), device="cpu"
        )


def gan():
    return nn.ModuleDict({"g": nn.Linear(64, 64), "d": nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 1))})


def alternating(first, second):
    def step(model, optimizers, batch):
        of_g, of_d = optimizers[first], optimizers[second]
        made = model["g"](batch[0])
        of_d.zero_grad()
        (F.softplus(model["d"](made.detach())).mean() + F.softplus(-model["d"](batch[0])).mean()).backward()
        of_d.step()
        of_g.zero_grad()
        F.softplus(-model["d"](made)).mean().backward()
        of_g.step()

    return step


@pytest.mark.parametrize("kind", ["list", "tuple", "dict"])
def test_a_step_gets_several_optimizers(pool, kind):
    step = alternating(*(("g", "d") if kind == "dict" else (0, 1)))

    def build():
        model = gan()
        both = torch.optim.Adam(model["g"].parameters()), torch.optim.Adam(model["d"].parameters())
        return model, {"list": list(both), "tuple": both, "dict": dict(zip("gd", both, strict=True))}[kind]

    model, optimizers = build()
    found = snugfit.estimate(model, BATCH, step=step, optimizer=optimizers, device="cpu", pool=pool)
    assert found.peak_allocated_bytes == pytest.approx(measured(build, step, 3), rel=0.02)
    with pytest.raises(InputError, match="optimizer holds a int; for step= give a name"):
        snugfit.estimate(model, BATCH, step=step, optimizer=[3], device="cpu", pool=pool)


def test_networks_that_only_the_step_holds(pool):
    """The other network of a GAN in a closure, with its optimizer in the list."""

    def build():
        model = gan()
        both = [torch.optim.Adam(model["g"].parameters()), torch.optim.Adam(model["d"].parameters())]
        return model, both

    model, both = build()
    apart = lambda g, optimizers, batch: alternating(0, 1)({"g": g, "d": model["d"]}, optimizers, batch)  # noqa: E731
    whole = snugfit.estimate(model, BATCH, step=alternating(0, 1), optimizer=both, device="cpu", pool=pool)
    found = snugfit.estimate(model["g"], BATCH, step=apart, optimizer=both, device="cpu", pool=pool)
    assert found.peak_allocated_bytes == whole.peak_allocated_bytes


def hooked():
    """A classifier whose weights are updated in hooks of their backward pass."""
    model = classifier()
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda weight: weight.data.sub_(0.1 * weight.grad))
    return model


def test_hooks_that_are_not_run_are_named(pool):
    def step(model, optimizer, batch):
        F.cross_entropy(model(batch[0]), batch[1]).backward()

    with pytest.warns(snugfit.errors.SnugfitWarning, match="hooks that the model came with"):
        snugfit.estimate(hooked, BATCH, step=step, device="cpu", pool=pool)
