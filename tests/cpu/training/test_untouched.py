"""What a person's code changes while it is only tried is put back, by value, wherever it is held."""

import collections
import functools
import queue
import random
import typing

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from snugfit.measure.allocator_events import AllocatorEvents
from snugfit.training.untouched import untouched

SEEN = []
COUNT = 0
BANKS = {"features": []}


class Slotted:
    __slots__ = ("calls", "never")

    def __init__(self):
        self.calls = 0


class Shared:
    """Keeps everything on its class."""

    bank: typing.ClassVar = []
    calls = 0

    def add(self, value):
        Shared.bank.append(value)
        type(self).calls += 1


class Memory(nn.Module):
    """Holds one of everything that code changes in its forward."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.teacher = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("scale", torch.ones(4))
        self.plain, self.tensors = torch.zeros(3), [torch.zeros(2), {"deep": torch.zeros(2)}]
        self.bank, self.table, self.names, self.last = [], {"n": [1]}, {"a"}, collections.deque([1, 2], maxlen=2)
        self.ordered = collections.OrderedDict(a=1, b=2)
        self.generator, self.numpy_generator = torch.Generator().manual_seed(1), np.random.default_rng(1)
        self.old_numpy, self.python_random = np.random.RandomState(1), random.Random(1)
        self.array, self.slotted, self.shared, self.calls = np.zeros(3), Slotted(), Shared(), 0
        self.itself = self.bank
        self.bank.append(self.table)  # and a circle
        self.table["bank"] = self.bank

    def forward(self, x):
        self.bank.append(x)
        self.table["n"].append(2)
        self.table["new"] = x
        self.names.add("b")
        self.last.append(x)
        self.ordered.move_to_end("a")
        torch.rand(1, generator=self.generator)
        self.numpy_generator.random()
        self.old_numpy.rand()
        self.python_random.random()
        self.array += 1
        self.slotted.calls += 1
        self.slotted.never = x
        self.shared.add(x)
        self.calls += 1
        self.made_in_forward = x
        with torch.no_grad():
            self.plain += 1
            self.tensors[0].fill_(3)
            self.tensors[1]["deep"] = x
            self.scale *= 0.9
            self.teacher.weight.lerp_(self.layer.weight, 0.1)
            self.teacher.bias.data = self.layer.bias.data * 2
            self.layer.weight.clamp_(-0.01, 0.01)
        return self.norm(self.layer(x))


def looked(value, seen=None):
    """A value as plain data, deep."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return "again"
    if isinstance(value, torch.Tensor):
        gradient = value.grad if value.is_leaf else None
        return value.tolist(), value.data_ptr(), None if gradient is None else gradient.tolist()
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, np.random.RandomState | random.Random):
        return str(value.get_state() if isinstance(value, np.random.RandomState) else value.getstate())
    if isinstance(value, np.ndarray):
        return value.tolist()
    seen[id(value)] = value
    if isinstance(value, dict):
        return [(key, looked(one, seen)) for key, one in value.items()]
    if isinstance(value, list | tuple | collections.deque):
        return [looked(one, seen) for one in value]
    if isinstance(value, Slotted):
        return value.calls, hasattr(value, "never")
    if isinstance(value, nn.Module | Shared):
        return looked(vars(value), seen), looked([Shared.bank, Shared.calls], seen)
    return repr(value)


def test_everything_that_a_model_holds():
    model = Memory()
    before, tensors = looked(model), list(model.parameters())
    with untouched([model]):
        for _ in range(3):
            model(torch.randn(5, 4)).sum().backward()
        assert looked(model) != before and model.layer.weight.grad is not None
    assert looked(model) == before
    assert all(one is other for one, other in zip(model.parameters(), tensors, strict=True))
    Shared.bank.clear()


def counting():
    calls, seen = 0, []

    def loss(output, batch, kept=[]):  # noqa: B006 that is what is tested
        nonlocal calls
        calls += 1
        seen.append(len(output))
        kept.append(len(output))
        loss.calls = calls
        return output.sum()

    return loss, lambda: (calls, list(seen), list(loss.__defaults__[0]), vars(loss).get("calls"))


def to_globals(output, batch):
    global COUNT
    COUNT += 1
    SEEN.append(len(output))
    helper(output)
    return output.sum()


def helper(output):
    BANKS["features"].append(output)


class Cached:
    """A loss that is no module, with a cache by size."""

    def __init__(self):
        self.labels = {}

    def __call__(self, output, batch):
        return output.sum() + self.labels.setdefault(len(output), torch.arange(len(output))).sum()


def cached():
    loss = Cached()
    return loss, lambda: list(loss.labels)


def bound():
    loss = Cached()
    return functools.partial(loss.__call__), lambda: list(loss.labels)


@pytest.mark.parametrize(
    "made",
    [counting, cached, bound, lambda: (to_globals, lambda: (COUNT, list(SEEN), list(BANKS["features"])))],
    ids=["closure", "object", "partial of a method", "globals"],
)
def test_what_a_loss_keeps(made):
    loss, state = made()
    before = state()
    with untouched([loss]):
        for samples in (4, 2):
            loss(torch.randn(samples, 3), None)
        assert state() != before
    assert state() == before


def test_what_a_hook_keeps():
    model, features = nn.Linear(3, 3), []
    model.register_forward_hook(lambda module, inputs, output: features.append(output))
    with untouched([model]):
        model(torch.randn(2, 3))
        assert features
    assert not features


def test_random_numbers_of_the_process():
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    with untouched([]):
        torch.rand(1), np.random.rand(), random.random()
    drawn = torch.rand(1).item(), np.random.rand(), random.random()
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    assert drawn == (torch.rand(1).item(), np.random.rand(), random.random())


def test_put_back_when_the_code_fails():
    model = Memory()
    before = looked(model)
    with pytest.raises(RuntimeError), untouched([model]):
        model(torch.randn(5, 3))
    assert looked(model) == before


def test_weights_that_nobody_writes_are_not_copied():
    """They may be as large as the machine."""
    model = nn.Linear(512, 512)
    events = AllocatorEvents()
    events.start()
    with untouched([model]):
        model(torch.randn(1, 512))
    events.stop()
    assert events.peak_bytes < 2**16


def test_what_compiles_inside_still_does():
    class Compiled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x):
            with torch.no_grad():
                self.layer.bias.mul_(0.9)
            return flex_attention(x, x, x) + self.layer(x)  # it compiles itself, and is an operator of a higher order

    model = Compiled()
    before = model.layer.bias.clone()
    with untouched([model]):
        torch.autograd.grad(model(torch.randn(1, 1, 16, 16)).sum(), model.layer.bias)
        assert not torch.equal(model.layer.bias, before)
    assert torch.equal(model.layer.bias, before)


def test_what_goes_on_outside_is_left_alone():
    """A queue that something else fills and empties must not be put back."""
    held = queue.Queue()

    def loss(output):
        return output if held.empty() else held.get()

    held.put(1)
    with untouched([loss]):
        loss(0)
    assert held.empty()
