"""How batches reach models and losses: torch's own losses are understood, and what does not fit is said in words."""

import dataclasses
import functools
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from snugfit import InputError, Recipe
from snugfit.training.model_call import loss_of, output_of, takes_target

X, Y = torch.randn(12, 8), torch.arange(12) % 3
Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "a"


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    inner: Sample


class OwnLoss(nn.Module):
    def forward(self, output, target):
        return F.cross_entropy(output, target)


class WholeBatch(nn.Module):
    def forward(self, output, batch):
        return F.cross_entropy(output, batch[1])


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=torch.ones(3)),
        F.cross_entropy,
        functools.partial(F.cross_entropy, label_smoothing=0.0),
        WholeBatch(),
        lambda output, batch: F.cross_entropy(output, batch[1]),
    ],
)
def test_losses_of_torch_get_the_target(loss):
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    wanted = F.cross_entropy(model(X), Y).item()
    trainer = snugfit.prepare(model, Recipe(microbatch_size=4), loss=loss, device="cpu")
    assert trainer.step((X, Y)).item() == pytest.approx(wanted, rel=1e-5)


def test_which_losses_take_a_target():
    assert takes_target(nn.MSELoss()) and takes_target(F.mse_loss) and takes_target(functools.partial(F.mse_loss))
    assert not takes_target(OwnLoss()) and not takes_target(lambda output, batch: None)

    class Own(nn.CrossEntropyLoss):
        pass

    def cross_entropy(output, batch):
        pass

    assert not takes_target(Own()) and not takes_target(cross_entropy)


@pytest.mark.parametrize(
    "loss, batch, message",
    [
        (nn.CrossEntropyLoss(), {"x": X, "labels": Y}, r"CrossEntropyLoss takes \(output, target\).*\['labels'\]"),
        (F.mse_loss, X, r"mse_loss takes \(output, target\)"),
        (OwnLoss(), (X, Y), r"OwnLoss\(output, batch\[1\]\)"),
        (lambda output: output.sum(), (X, Y), "too many positional arguments"),
        (lambda output, batch, more: output.sum(), (X, Y), "missing a required argument: 'more'"),
    ],
)
def test_a_loss_that_does_not_fit_is_told_how(loss, batch, message):
    output = torch.randn(12, 3, requires_grad=True)
    with pytest.raises(InputError, match=message):
        loss_of(output, batch, loss)


def test_a_mistake_inside_of_a_loss_stays_as_it_is():
    def loss(output, batch):
        return output + "text"

    with pytest.raises(TypeError, match="unsupported operand"):
        loss_of(torch.randn(3, requires_grad=True), (X, Y), loss)


def test_items_of_a_dict_that_the_model_does_not_take_are_named():
    with pytest.raises(InputError, match=r"items x, y of the dict batch.*forward=lambda model, batch"):
        output_of(nn.Linear(8, 3), {"x": X, "y": Y}, None)

    class Fails(nn.Module):
        def forward(self, x, y):
            return x + "text"

    with pytest.raises(TypeError, match="unsupported operand"):
        output_of(Fails(), {"x": X, "y": Y}, None)


@pytest.mark.parametrize(
    "batch, forward, target",
    [
        (Sample(X, Y), lambda m, b: m(b.x), lambda b: b.y),
        (Frozen(X, Sample(X, Y)), lambda m, b: m(b.inner.x), lambda b: b.inner.y),
        (Pair(X, Y), lambda m, b: m(b.x), lambda b: b.y),
        ({"a": [X, {"y": Y}]}, lambda m, b: m(b["a"][0]), lambda b: b["a"][1]["y"]),
    ],
)
@pytest.mark.parametrize("size", [None, 5])
def test_batches_of_any_nesting_are_trained_and_estimated(batch, forward, target, size):
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    wanted = F.cross_entropy(model(X), Y).item()
    loss = lambda output, given: F.cross_entropy(output, target(given))  # noqa: E731
    recipe = Recipe(microbatch_size=size)
    found = snugfit.estimate(model, batch, loss=loss, forward=forward, recipe=recipe, device="rtx-4090")
    assert found.batch_shape == "12 x 8"
    trainer = snugfit.prepare(model, recipe, loss=loss, forward=forward, device="cpu")
    assert trainer.step(batch).item() == pytest.approx(wanted, rel=1e-5)


def test_lazy_layers_train_plainly_and_say_what_else_they_need():
    layers = lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(3))  # noqa: E731
    trainer = snugfit.prepare(layers(), loss=F.cross_entropy, device="cpu")
    assert torch.isfinite(trainer.step((X, Y))) and torch.isfinite(trainer.step((X, Y)))
    with pytest.raises(InputError, match=r"'0\.weight' is lazy.*one batch"):
        snugfit.prepare(layers(), Recipe(precision="bf16-true"), loss=F.cross_entropy, device="cpu")
    with pytest.raises(InputError, match=r"'0\.running_mean' is lazy"):
        snugfit.prepare(nn.Sequential(nn.LazyBatchNorm1d(), nn.Linear(8, 3)), loss=F.cross_entropy, device="cpu")
