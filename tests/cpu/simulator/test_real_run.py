"""Nobody is told that a real run would fail before one was tried."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from snugfit import CannotSimulateError, InputError
from snugfit.simulator import real_run

BATCH = torch.randn(16, 8), torch.arange(16) % 3


def entropy(output, batch):
    return F.cross_entropy(output, batch[1])


class Simulated(nn.Module):
    """Works, but not on simulated tensors."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 3)

    def forward(self, x):
        if type(x) is not torch.Tensor:
            raise ValueError("not for subclasses of tensors")
        return self.inner(x)


class Holder:
    def __init__(self, inner):
        self.inner = inner


class OnlyAsked(nn.Module):
    """Fails in another way on real tensors."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 3)

    def forward(self, x):
        raise KeyError("simulated") if type(x) is not torch.Tensor else OSError("no such disk")


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
@pytest.mark.parametrize(
    "model, loss",
    [
        (lambda: nn.Linear(9, 3), entropy),
        (lambda: nn.Linear(8, 3), lambda output, batch: F.mse_loss(output, batch[7])),
        (lambda: nn.Linear(8, 3), lambda output, batch: entropy(output.view(-1, 5), batch)),
    ],
)
def test_a_mistake_is_said_to_be_one_after_it_was_made_for_real(pool, model, loss, device):
    with pytest.raises(InputError, match="The same happens in a real run on CPU with 2 samples") as caught:
        snugfit.estimate(model(), BATCH, device=device, pool=pool, loss=loss)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
def test_what_works_for_real_is_the_simulators_own_limit(pool, device):
    with pytest.raises(CannotSimulateError, match="limitation of the simulator") as caught:
        snugfit.estimate(Simulated(), BATCH, device=device, pool=pool, loss=entropy)
    assert caught.value.exit_code == 5
    assert "ValueError" in str(caught.value) and "test_real_run.py" in str(caught.value)


def test_another_error_for_real_is_told_with_both(pool):
    with pytest.raises(InputError, match=r"fails in another way.*no such disk"):
        snugfit.estimate(OnlyAsked(), BATCH, device="cpu", pool=pool, loss=entropy)


def test_a_large_model_is_not_tried_and_that_is_said(pool):
    model = nn.Sequential(nn.Linear(8, real_run.MOST_ELEMENTS // 4), Simulated())
    with pytest.raises(InputError, match="was not tried: it would make") as caught:
        snugfit.estimate(model, BATCH, device="cpu", pool=pool, loss=entropy)
    assert "same would happen" not in str(caught.value)


@pytest.mark.parametrize(
    "step, error",
    [
        (lambda model, optimizer, batch: model(batch[0][:, :3]).sum().backward(), InputError),
        (
            lambda model, optimizer, batch: Simulated.forward(type("S", (), {"inner": model})(), batch[0]),
            CannotSimulateError,
        ),
    ],
)
def test_a_hand_written_step_is_tried_as_well(pool, step, error):
    with pytest.raises(error, match=r"[Aa] real run on CPU"):
        snugfit.estimate(nn.Linear(8, 3), BATCH, device="cpu", pool=pool, step=step, optimizer="sgd", lr=0.1)


def test_what_is_captured_takes_part(pool):
    held = torch.ones(3)

    def loss(output, batch):
        if type(output) is not torch.Tensor:
            raise ValueError("not for subclasses of tensors")
        return (output * held).sum()

    with pytest.raises(CannotSimulateError, match="works"):
        snugfit.estimate(nn.Linear(8, 3), BATCH, device="cpu", pool=pool, loss=loss)


def test_the_worker_simulates_as_before_afterwards(pool):
    plain = snugfit.estimate(nn.Linear(8, 3), BATCH, device="cpu", pool=pool, loss=entropy).peak_allocated_bytes
    with pytest.raises(CannotSimulateError):
        snugfit.estimate(Simulated(), BATCH, device="cpu", pool=pool, loss=entropy)
    assert snugfit.estimate(nn.Linear(8, 3), BATCH, device="cpu", pool=pool, loss=entropy).peak_allocated_bytes == plain


class FailsInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 3)

    def forward(self, x):
        return self.inner(x[:, :3])


def bad_split(batch, size):
    raise KeyError("no such part of the batch")


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        (FailsInside, {"loss": entropy}),
        (lambda: nn.Linear(8, 3), {"loss": lambda output, batch: F.cross_entropy(output, batch[2])}),
        (lambda: nn.Linear(8, 3), {"loss": entropy, "forward": lambda model, batch: model(batch["x"])}),
        (lambda: nn.Linear(8, 3), {"loss": entropy, "split": bad_split, "recipe": snugfit.Recipe(microbatch_size=4)}),
    ],
    ids=["model", "loss", "forward", "split"],
)
def test_what_fails_is_said_whatever_the_optimizer_came_as(pool, model, arguments):
    said = []
    for kind in ("name", "function", "instance"):
        made = model()
        optimizer = {
            "name": "adam", "function": torch.optim.Adam, "instance": torch.optim.Adam(made.parameters()),
        }[kind]  # fmt: skip
        with pytest.raises(InputError, match="The same happens in a real run") as caught:
            snugfit.estimate(made, BATCH, optimizer=optimizer, device="cpu", pool=pool, **arguments)
        said.append(str(caught.value))
    assert len(set(said)) == 1, said


class FailsElsewhere(nn.Module):
    """The same class of error, simulated and real, in two lines that have nothing to do with each other."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 3)

    def forward(self, x):
        if type(x) is not torch.Tensor:
            raise ValueError("simulated")
        raise ValueError("real")


def test_the_same_is_only_said_of_the_same_line(pool):
    with pytest.raises(InputError, match=r"fails in another way \(ValueError: real\)"):
        snugfit.estimate(FailsElsewhere(), BATCH, device="cpu", pool=pool, loss=entropy)


def test_an_error_of_ours_in_the_real_run_does_not_hide_the_one_that_happened(pool):
    def loss(output, batch):
        if type(output) is not torch.Tensor:
            raise IndexError("what happened")
        return output

    with pytest.raises(
        InputError, match=r"IndexError: what happened\. A real run .* fails in another way \(InputError"
    ):
        snugfit.estimate(nn.Linear(8, 3), BATCH, device="cpu", pool=pool, loss=loss)


def test_every_batch_of_several_is_tried(pool):
    with pytest.raises(InputError, match="The same happens in a real run"):
        snugfit.estimate(
            nn.Linear(8, 3), batches=[BATCH, (BATCH[0][:, :5], BATCH[1])], device="cpu", pool=pool, loss=entropy
        )
