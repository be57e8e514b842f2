"""Modules that losses and forward functions hold by themselves are found, and batch norm in them counts in training mode."""

import functools
import types
import weakref
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from snugfit.techniques.reachable import captured_modules
from snugfit.workloads.traits import model_traits

BATCH = torch.randn(16, 8), torch.arange(16) % 3


def small():
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))


def normed():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)).requires_grad_(False)


def with_teacher(output, batch, teacher):
    return F.mse_loss(output, teacher(batch[0]))


def closure(teacher):
    return lambda output, batch: with_teacher(output, batch, teacher)


def inner_function(teacher):
    def loss(output, batch):
        return sum(with_teacher(output, batch, one) for one in [teacher])

    return loss


def default_argument(teacher):
    return lambda output, batch, held=teacher: with_teacher(output, batch, held)


def keyword_only(teacher):
    def loss(output, batch, *, held=teacher):
        return with_teacher(output, batch, held)

    return loss


def partial(teacher):
    return functools.partial(with_teacher, teacher=teacher)


def containers(teacher):
    held = {"nets": [(teacher, 0.5)]}
    return lambda output, batch: with_teacher(output, batch, held["nets"][0][0])


def attribute(teacher):
    class Loss:
        def __init__(self):
            self.teacher = teacher

        def __call__(self, output, batch):
            return with_teacher(output, batch, self.teacher)

    return Loss()


def slot(teacher):
    @dataclass(slots=True)
    class Loss:
        teacher: nn.Module

        def __call__(self, output, batch):
            return with_teacher(output, batch, self.teacher)

    return Loss(teacher)


def bound_method(teacher):
    class Task:
        def __init__(self):
            self.nets = types.SimpleNamespace(teacher=teacher)

        def loss(self, output, batch):
            return with_teacher(output, batch, self.nets.teacher)

    return Task().loss


def module(teacher):
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.held = [teacher]  # not a part of it

        def forward(self, output, batch):
            return with_teacher(output, batch, self.held[0])

    return Loss()


def module_global(teacher):
    code = (
        "import torch.nn.functional as F\n"
        "def help(output, batch):\n    return F.mse_loss(output, nets[0](batch[0]))\n"
        "def loss(output, batch):\n    return (lambda: help(output, batch))()\n"
    )
    found = types.ModuleType("snugfit_test_captured_globals")
    exec(code, found.__dict__)
    found.nets = [teacher]
    return found.loss


STYLES = [
    closure, inner_function, default_argument, keyword_only, partial, containers, attribute, slot, bound_method, module,
    module_global,
]  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_a_captured_module_counts_in_the_mode_that_it_is_in(style):
    teacher = normed()
    loss = style(teacher)
    assert loss(torch.zeros(16, 3), BATCH) > 0
    assert teacher in captured_modules(loss)
    assert model_traits(small(), loss) == {"batch_norm": True, "dropout": False, "half_weights": False}
    teacher.eval()
    assert model_traits(small(), loss) == {"batch_norm": False, "dropout": False, "half_weights": False}


def test_dropout_and_single_layers_in_training_mode_count():
    teacher = nn.Sequential(nn.Linear(8, 3), nn.Dropout(0.5)).eval()
    loss = closure(teacher)
    assert model_traits(small(), None, loss) == {"batch_norm": False, "dropout": False, "half_weights": False}
    teacher[1].train()
    assert model_traits(small(), None, loss) == {"batch_norm": False, "dropout": True, "half_weights": False}


def test_batch_norm_without_running_statistics_takes_those_of_the_batch_in_any_mode():
    loss = closure(nn.BatchNorm1d(8, track_running_stats=False).eval())
    assert model_traits(small(), loss)["batch_norm"]


def test_what_the_model_holds_without_registering_it_counts_too():
    model = small()
    model.teacher = [normed()]
    assert model_traits(model)["batch_norm"]
    model.teacher[0].eval()
    assert not model_traits(model)["batch_norm"]
    model.append(nn.BatchNorm1d(3).eval())
    assert model_traits(model)["batch_norm"]  # its own are put into training mode by the trainer


def test_what_is_not_held_does_not_count():
    normed()
    names = types.ModuleType("snugfit_test_captured_names")
    exec("def loss(output, batch):\n    return output.teacher", names.__dict__)
    names.teacher = normed()
    assert captured_modules(names.loss, F.cross_entropy, None, 3, "text", [1.0], len) == []


def test_what_a_weak_proxy_points_to_is_not_held():
    model, teacher = small(), normed()
    model.owner = [weakref.proxy(teacher), weakref.proxy(model)]
    assert teacher not in captured_modules(model)
    assert not model_traits(model, None, None)["batch_norm"]


def test_circles_and_empty_cells():
    loop = [small()]
    loop.append(loop)

    def early():
        return late

    assert captured_modules(early, loop) == [loop[0], *loop[0]]
    late = normed()
    assert late in captured_modules(early)


class Endless(tuple):
    """A tuple that does not tell how long it is, as e3nn's irreps."""

    def __len__(self):
        raise NotImplementedError


def test_a_tuple_without_a_length_is_gone_through():
    model = small()
    assert captured_modules(Endless([model])) == [model, *model]


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


def test_each_object_of_a_class_is_looked_into_and_empty_containers_are_modules_too():
    first, second, empty = nn.Linear(2, 2), nn.Linear(2, 2), nn.Sequential()
    assert captured_modules([Slotted(first), Slotted(second), {"none": empty, "nothing": {}}]) == [first, second, empty]


OTHERS = ("adapter", "quantize", "step_in_backward", "optimizer_impl", "loss_impl", "init")
"""What a plan could choose beside microbatches."""


@pytest.mark.parametrize("by_forward", [False, True])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_plan_knows_it_before_the_first_step(pool, mode, by_forward):
    teacher = normed().train(mode == "train")

    def both(model, batch):
        return model(batch[0]), teacher(batch[0])

    held = {"loss": closure(teacher)}
    if by_forward:
        held = {"forward": both, "loss": lambda output, batch: F.mse_loss(*output)}
    batch = torch.randn(4096, 8), torch.arange(4096) % 3
    plain = snugfit.estimate(small(), batch, device="cpu", pool=pool, optimizer="sgd", **held)
    budget = int(0.7 * plain.peak_allocated_bytes)
    if mode == "train":
        with pytest.raises(snugfit.DoesNotFitError) as caught:
            snugfit.plan(small(), batch, budget=2**19, device="cpu", pool=pool, optimizer="sgd", forbid=OTHERS, **held)
        budget = caught.value.smallest_budget_bytes["exact"]
    plan = snugfit.plan(small(), batch, budget=budget, device="cpu", pool=pool, optimizer="sgd", forbid=OTHERS, **held)
    assert (plan.recipe.microbatch_size is None) == (mode == "train")
    torch.manual_seed(0)
    model = small()
    trainer = snugfit.prepare(model, plan, device="cpu", optimizer="sgd", **held)
    assert torch.isfinite(trainer.step(batch))


def test_microbatches_are_labelled_when_a_captured_batch_norm_sees_them():
    teacher = normed()
    for mode, exact in ((True, False), (False, True)):
        teacher.train(mode)
        trainer = snugfit.prepare(
            small(), snugfit.Recipe(microbatch_size=4), loss=closure(teacher), optimizer="sgd", device="cpu"
        )
        trainer.step(BATCH)
        assert ("microbatch_size" not in trainer.fidelity.reasons) is exact
        assert all(one.training is mode for one in teacher.modules())
