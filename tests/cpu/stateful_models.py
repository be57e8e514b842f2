"""Small models whose forward passes leave something behind, one for each way to do so; all in float64."""

from __future__ import annotations

import collections
import itertools
import queue
import random
import sys
import types
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

WIDTH, CLASSES, SAMPLES = 6, 3, 8


class Block(nn.Module):
    """A residual block; `made` gives it what it needs, `passed` is its forward method."""

    def __init__(self, number: int, made: Callable, passed: Callable) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        made(self, number)
        self.passed = passed

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.passed(self, x)


class Stack(nn.Module):
    def __init__(self, made: Callable, passed: Callable, walk: Callable | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(number, made, passed) for number in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.walk = walk

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.walk is not None:
            return self.head(self.walk(self, x))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def _nothing(block, number):
    pass


def _buffer(block, number):
    block.register_buffer("scale", torch.ones(()))


def _rebound(block, x):
    block.scale = 0.9 * block.scale + 0.1 * x.detach().abs().mean()
    return block.body(x / block.scale)


def _overwritten(block, x):
    block.scale.mul_(0.9).add_(0.1 * x.detach().abs().mean())
    return block.body(x / block.scale.clone())


def _slow(block, x):
    block.scale = 0.9999 * block.scale + 0.0001 * x.detach().abs().mean()
    return block.body(x / block.scale)


def _only_kept(block, x):
    block.scale = 0.9 * block.scale + 0.1 * x.detach().abs().mean()  # evaluation takes it
    return block.body(x)


def _plain_tensor(block, number):
    block.mean = torch.zeros(WIDTH, dtype=torch.float64)


def _centred(block, x):
    block.mean += 0.1 * (x.detach().mean(0) - block.mean)
    return block.body(x - block.mean.clone())


def _counter(block, number):
    block.calls = 0


def _counted(block, x):
    block.calls += 1
    return block.body(x * (1 + 0.1 * block.calls))


def _statistics(block, number):
    block.register_buffer("average", torch.zeros(WIDTH))
    block.register_buffer("variance", torch.ones(WIDTH))


def _normed_by_hand(block, x):
    y = F.batch_norm(x, block.average, block.variance, training=True, momentum=0.3)
    return block.body(y + 0.1 * block.average.clone())


def _list(block, number):
    block.penalties = []


def _appended(block, x):
    block.penalties.append(x.square().mean())
    return block.body(x) * (1 + 0.01 * len(block.penalties))


class Meter:
    """An object of the user's own."""

    def __init__(self) -> None:
        self.calls, self.by_size = 0, {}

    def note(self, size: int) -> None:
        self.calls += 1
        self.by_size[size] = self.by_size.get(size, 0) + 1


def _meter(block, number):
    block.meter = Meter()


def _metered(block, x):
    block.meter.note(len(x))
    return block.body(x) * (1 + 0.1 * block.meter.calls + 0.1 * block.meter.by_size[len(x)])


def _spectral(block, number):
    parametrizations.spectral_norm(block.up)


def _body(block, x):
    return block.body(x)


def _observer(block, number):
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    block.quantize = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255, averaging_constant=0.5)


def _quantised(block, x):
    return block.body(block.quantize(x.float()).to(x.dtype))


def _python_noise(block, x):
    return block.body(x * random.uniform(0.5, 1.5))


def _numpy_noise(block, x):
    return block.body(x + torch.from_numpy(np.random.randn(*x.shape)).to(x))


def _own_generators(block, number):
    block.own = torch.Generator().manual_seed(number)
    block.python, block.numpy = random.Random(number), np.random.default_rng(number)


def _own_noise(block, x):
    noise = torch.randn(x.shape, generator=block.own, dtype=x.dtype)
    return block.body(x + noise * block.python.random() + block.numpy.normal())


def _dropped(block, x):
    return x if random.random() < 0.5 else block.body(x)


def _kept(block, x):
    block.hidden = block.up(x)
    return x + block.down(torch.tanh(block.hidden))


def _told_by_its_parent(model, x):
    for number in range(4):
        model.blocks[number % 2].turn = number
        x = model.blocks[number % 2](x)
    return x


def _turned(block, x):
    return block.body(x * (1 + 0.1 * block.turn))


def _closure(block, number):
    passes = 0

    def weight() -> float:
        nonlocal passes
        passes += 1
        return 1 + 0.1 * passes

    block.weight = weight


def _weighed(block, x):
    return block.body(x) * block.weight()


SEEN: list[float] = []
"""What a forward method names among its globals."""


def _noted(block, x):
    SEEN.append(1.0)
    return block.body(x) * (1 + 0.01 * len(SEEN))


def _hooks(block, number):
    block.features = {}
    block.up.register_forward_hook(lambda module, args, output: block.features.update(up=output))


def _leaky(block, number):
    block.leaky = nn.LeakyReLU(0.3, inplace=True)


def _overwrites_its_input(block, x):
    return block.body(block.leaky(x))


def _overwrites_its_weight(block, x):
    with torch.no_grad():
        block.up.weight.mul_(0.99)
    return x + block.down(torch.tanh(F.linear(x, block.up.weight.clone(), block.up.bias)))


def _late(block, x):
    if not hasattr(block, "scale"):
        block.register_buffer("scale", x.detach().abs().mean())
    return _overwritten(block, x)


def _count_of_class(block, x):
    Shared.calls += 1
    Shared.add(x.square().mean())
    return block.body(x) * (1 + 0.01 * Shared.calls)


class Shared:
    """What all blocks share through a class, as mixtures of experts do with their penalties."""

    calls, penalties = 0, []

    @classmethod
    def add(cls, penalty) -> None:
        cls.penalties.append(penalty)


class Slots:
    __slots__ = ("calls", "penalties")

    def __init__(self) -> None:
        self.calls, self.penalties = 0, []


class Rows(list):
    """A list of one's own."""


Pair = collections.namedtuple("Pair", "rows counts")


def _odd(block, number):
    block.slots, block.pair, block.made = Slots(), Pair(Rows(), np.zeros(2)), collections.defaultdict(collections.deque)
    block.penalties = []


def _oddly_kept(block, x):
    block.slots.calls += 1
    block.pair.rows.append(block.slots.calls)
    block.pair.counts[1] += len(block.pair.rows)
    block.made[block.slots.calls % 2].append(block.slots.calls)
    block.slots.penalties.append(x.square().mean())
    factor = block.slots.calls + len(block.pair.rows) + block.pair.counts[1] + sum(map(len, block.made.values()))
    return block.body(x) * (1 + 0.01 * factor)


class Follower(nn.Module):
    """A module that is nobody's child."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))


def _beside(block, number):
    block.beside, block.above = [Follower()], []


def _kept_beside(block, x):
    mean = block.beside[0].mean
    mean.mul_(0.9).add_(0.1 * x.detach().abs().mean())
    block.above[0].penalties.append(x.square().mean())
    file.seen.append(1.0)
    return block.body(x / (1 + mean.clone())) * (1 + 0.01 * len(file.seen))


def _walk_below(model, x):
    model.penalties = []
    for block in model.blocks:
        block.above[:] = [model]
        x = block(x)
    return x


file = sys.modules["file_of_stateful_models"] = types.ModuleType("file_of_stateful_models")
"""As an imported file that keeps a list."""


def _tuple(block, number):
    block.state = (torch.zeros(WIDTH, dtype=torch.float64), 0)


def _reassigned_tuple(block, x):
    mean, calls = block.state
    block.state = (0.9 * mean + 0.1 * x.detach().mean(0), calls + 1)
    return block.body(x - block.state[0]) * (1 + 0.01 * calls)


def _unseen(block, number):
    block.count = queue.SimpleQueue()


def _unseen_counted(block, x):
    block.count.put(None)
    return block.body(x) * (1 + 0.1 * block.count.qsize())


def _added(model, output, batch):
    """The loss with what blocks have left behind for it, which is then emptied."""
    loss = F.cross_entropy(output, batch[1])
    for block in model.blocks:
        for penalty in getattr(block, "penalties", ()):
            loss = loss + 0.1 * penalty
        if hasattr(block, "penalties"):
            block.penalties.clear()
        if hasattr(block, "slots"):
            loss = loss + 0.1 * sum(block.slots.penalties)
            block.slots.penalties.clear()
        if hasattr(block, "hidden"):
            loss = loss + 0.1 * block.hidden.square().mean()
        if getattr(block, "features", None):
            loss = loss + 0.1 * block.features["up"].square().mean()
    loss = loss + 0.1 * sum(Shared.penalties) + 0.1 * sum(getattr(model, "penalties", ()))
    Shared.penalties.clear()
    return loss


def _late_python(block, x):
    block.calls += 1
    return block.body(x * random.uniform(0.5, 1.5)) if block.calls > 1 else block.body(x)


def _late_numpy(block, x):
    block.calls += 1
    return block.body(x * np.random.rand()) if block.calls > 1 else block.body(x)


def _late_own(block, x):
    block.calls += 1
    return block.body(x + block.python.random() + block.numpy.normal()) if block.calls > 1 else block.body(x)


def _own_and_counter(block, number):
    block.python, block.numpy, block.calls = random.Random(number), np.random.default_rng(number), 0


def _iterator(block, number):
    block.factors, block.calls = itertools.cycle([0.5, 1.0, 1.5, 2.0]), 0


def _late_iterator(block, x):
    block.calls += 1
    return block.body(x * next(block.factors)) if block.calls > 1 else block.body(x)


KINDS: dict[str, tuple[Callable, Callable, Callable | None]] = {
    "buffer reassigned": (_buffer, _rebound, None),
    "buffer overwritten": (_buffer, _overwritten, None),
    "buffer that moves slowly": (_buffer, _slow, None),
    "buffer for evaluation": (_buffer, _only_kept, None),
    "tensor attribute": (_plain_tensor, _centred, None),
    "counter": (_counter, _counted, None),
    "running statistics by hand": (_statistics, _normed_by_hand, None),
    "penalties in a list": (_list, _appended, None),
    "object": (_meter, _metered, None),
    "power iteration": (_spectral, _body, None),
    "observer": (_observer, _quantised, None),
    "noise of Python, later": (_counter, _late_python, None),
    "noise of NumPy, later": (_counter, _late_numpy, None),
    "generators of one's own, later": (_own_and_counter, _late_own, None),
    "iterator, later": (_iterator, _late_iterator, None),
    "noise of Python": (_nothing, _python_noise, None),
    "noise of NumPy": (_nothing, _numpy_noise, None),
    "own generators": (_own_generators, _own_noise, None),
    "layer drop": (_nothing, _dropped, None),
    "kept activation": (_nothing, _kept, None),
    "told by its parent": (_nothing, _turned, _told_by_its_parent),
    "variable of a closure": (_closure, _weighed, None),
    "global list": (_nothing, _noted, None),
    "hook that keeps": (_hooks, _body, None),
    "overwrites its input": (_leaky, _overwrites_its_input, None),
    "overwrites its weight": (_nothing, _overwrites_its_weight, None),
    "buffer registered late": (_nothing, _late, None),
    "shared through a class": (_nothing, _count_of_class, None),
    "odd containers": (_odd, _oddly_kept, None),
    "beside and above": (_beside, _kept_beside, _walk_below),
    "tuple": (_tuple, _reassigned_tuple, None),
    "counts where nobody sees": (_unseen, _unseen_counted, None),
}
"""Name -> what makes a block, what it does, and how the model goes through its blocks."""
LEFT_ALONE = ("overwrites its input", "overwrites its weight", "iterator, later")
"""Kinds whose blocks are not computed again."""
REFUSED = "counts where nobody sees"
"""The kind that nobody can put back."""


def make(kind: str) -> Stack:
    """A model of a kind, the same each time, with all random numbers at their start."""
    SEEN.clear()
    Shared.calls, Shared.penalties, file.seen = 0, [], []
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return Stack(*KINDS[kind]).double()


def batches(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of a run."""
    draw = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(SAMPLES, WIDTH, generator=draw, dtype=torch.float64),
            torch.randint(0, CLASSES, (SAMPLES,), generator=draw),
        )
        for _ in range(steps)
    ]


def forward(model: Stack, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The loss of a batch."""
    return _added(model, model(batch[0]), batch)


def left_behind(model: Stack) -> dict[str, object]:
    """What passes have left, to be held against a plain run's."""
    found: dict[str, object] = {
        "seen": (len(SEEN), len(file.seen), Shared.calls, len(Shared.penalties)),
        "python": random.random(),
        "numpy": float(np.random.rand()),
    }
    for number, block in enumerate(model.blocks):
        found[f"{number}.calls"] = getattr(block, "calls", None)
        found[f"{number}.penalties"] = len(getattr(block, "penalties", ()))
        if hasattr(block, "meter"):
            found[f"{number}.meter"] = (block.meter.calls, dict(block.meter.by_size))
        if hasattr(block, "slots"):
            found[f"{number}.odd"] = (block.slots.calls, list(block.pair.rows), block.pair.counts.tolist(), block.made)
        if hasattr(block, "beside"):
            found[f"{number}.beside"] = block.beside[0].mean.item()
        if hasattr(block, "own"):
            found[f"{number}.own"] = (block.own.get_state().sum().item(), block.python.random(), block.numpy.normal())
        if hasattr(block, "factors"):
            found[f"{number}.next"] = next(block.factors)
        if hasattr(block, "weight"):
            found[f"{number}.weight"] = block.weight()
    return found
