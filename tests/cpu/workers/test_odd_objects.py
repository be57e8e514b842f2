"""What models and losses hold travels to the simulation, or is named with what to do about it."""

import io
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from tqdm import tqdm

import snugfit
from snugfit import CannotSimulateError

BATCH = torch.randn(8, 4), torch.randint(0, 3, (8,))


class Holder(nn.Module):
    def __init__(self, thing, use=None):
        super().__init__()
        self.layer, self.thing, self.use = nn.Linear(4, 3), thing, use

    def forward(self, x):
        if self.use is not None:
            self.use(self.thing)
        return self.layer(x)


class StateThatIsNoDict:
    """Pickle writes it and cannot read it back."""

    value = 3

    def __getstate__(self):
        return 3


class WantsMore(Exception):
    """Pickle reads it back with one argument."""

    def __init__(self, one, two):
        super().__init__(one)


class RefusesToBePickled:
    value = 3

    def __reduce__(self):
        raise RuntimeError("not this one")


class AsksItself:
    """`__getattr__` of something that is not there yet, when it is read back."""

    def __init__(self):
        self.inner = object()

    def __getattr__(self, name):
        return getattr(self.inner, name)


def running():
    generator = iter(value for value in (1, 2))
    next(generator)
    return generator


def local():
    class Local:
        def __init__(self):
            self.file, self.value = Path("/dev/null").open(), 3  # noqa: SIM115 - it is to be open

    return Local()


def entropy(output, batch):
    return F.cross_entropy(output, batch[1])


def estimated(pool, model, loss=entropy):
    return snugfit.estimate(model, BATCH, loss=loss, device="cpu", pool=pool)


@pytest.mark.parametrize(
    ("thing", "use"),
    [
        (SDPBackend.MATH, lambda thing: sdpa_kernel(thing).__enter__()),
        ({"kernels": [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]}, lambda thing: sdpa_kernel(thing["kernels"])),
        (lambda x: SDPBackend.MATH, lambda thing: sdpa_kernel(thing(1)).__enter__()),
        (torch.distributed.ReduceOp.SUM, lambda thing: {torch.distributed.ReduceOp.SUM: 1}[thing]),
        (threading.Lock(), lambda thing: thing.acquire() and thing.release()),
        (threading.Event(), None),
        (torch.Generator().manual_seed(3), lambda thing: torch.rand(2, generator=thing)),
        (lambda x: x + 1, lambda thing: thing(1)),
        (local(), lambda thing: thing.value + 1),
        (torch.channels_last, None),
        (torch.backends, lambda thing: thing.cuda.matmul.allow_tf32 is False or thing.cuda.matmul),
        (tqdm(total=3, file=io.StringIO()), lambda thing: thing.update(1)),
    ],
    ids=[
        "enum of an extension",
        "in a dict",
        "its class in code",
        "nested enum",
        "lock",
        "event",
        "generator",
        "lambda",
        "local class",
        "format",
        "module of a class of its own",
        "progress bar",
    ],
)
def test_it_travels_and_works_there(pool, thing, use):
    assert estimated(pool, Holder(thing, use)).peak_allocated_bytes > 0


NOT_SENT = [running, StateThatIsNoDict, lambda: WantsMore(1, 2), RefusesToBePickled, AsksItself, threading.Thread]


@pytest.mark.parametrize("make", NOT_SENT)
def test_what_cannot_travel_is_in_nobodys_way_until_it_is_used(pool, make):
    plain = estimated(pool, Holder(None)).peak_allocated_bytes
    assert estimated(pool, Holder([{"deep": make()}])).peak_allocated_bytes == plain


@pytest.mark.parametrize("make", NOT_SENT[:4])
def test_what_cannot_travel_is_named_where_it_is_used(pool, make):
    with pytest.raises(
        CannotSimulateError, match=r"the step uses model\.thing\[0\]\['deep'\], an object of type .*make it"
    ):
        estimated(pool, Holder([{"deep": make()}], lambda thing: thing[0]["deep"].value))


def test_it_is_named_in_a_loss_as_well(pool):
    run, kept = running(), [StateThatIsNoDict()]

    def from_variable(output, batch):
        return entropy(output, batch) * next(run)

    with pytest.raises(CannotSimulateError, match="uses loss: variable run, an object of type generator"):
        estimated(pool, Holder(None), from_variable)

    def from_default(output, batch, kept=kept):
        return entropy(output, batch) * kept[0].value

    with pytest.raises(CannotSimulateError, match=r"uses loss: default 0\[0\], an object of type .*NoDict"):
        estimated(pool, Holder(None), from_default)


def test_several_at_once(pool):
    model = Holder({make.__name__: make() for make in NOT_SENT if make is not threading.Thread})
    assert estimated(pool, model).peak_allocated_bytes > 0
