"""An update that fails at any of its allocations comes out as if nothing had happened, or says that it could not."""

import copy
import importlib
import weakref
from types import SimpleNamespace

import pytest
import torch
from failing_allocations import (  # noqa: F401 - a fixture for all tests
    MESSAGE,
    allocates,
    failing,
    nothing_to_collect,
)
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit import OutOfMemoryError
from snugfit.techniques.host_pool import HostPool
from snugfit.techniques.low_bit_optimizer.apply import LIBRARIES, low_bit_optimizer
from snugfit.techniques.muon.apply import MuonWithAdamW
from snugfit.techniques.parameter_update import JointUpdate, ParameterUpdate
from snugfit.techniques.stochastic_rounding.apply import RoundedUpdate
from snugfit.training.unbroken_update import UnbrokenUpdate

CPU = torch.device("cpu")
KERNELS = {"foreach": {"foreach": True}, "for-loop": {"foreach": False}, "fused": {"fused": True}}
CASES = {
    f"{name}-{kernel}": (cls, {**settings, **KERNELS[kernel]})
    for name, cls, settings in (
        ("adam", Adam, {"weight_decay": 0.1}),
        ("adamw", AdamW, {"weight_decay": 0.1}),
        ("amsgrad", AdamW, {"amsgrad": True}),
        ("sgd", SGD, {"weight_decay": 0.1}),
        ("momentum", SGD, {"momentum": 0.9, "weight_decay": 0.1}),
        ("nesterov", SGD, {"momentum": 0.9, "nesterov": True}),
        ("adafactor", Adafactor, {}),
        ("adafactor-decay", Adafactor, {"weight_decay": 0.3}),
    )
    for kernel in KERNELS
    if not (cls is Adafactor and kernel == "fused")
} | {f"muon-{kernel}": (MuonWithAdamW, {"kernels": settings}) for kernel, settings in KERNELS.items()}


def taken(optimizer, step=None):
    """Takes an update by this optimizer; returns whether memory was short on the way."""
    update = JointUpdate(optimizer)

    def held():
        return [*update.held(), *(weight.grad for weight in update.weights)]

    unbroken = UnbrokenUpdate(HostPool(CPU), held)
    unbroken.take(update, None)
    return unbroken.interrupted


def made(cls, settings):
    generator = torch.Generator().manual_seed(3)
    weights = [
        nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=generator))
        for shape in ((4, 3), (3,), (2, 5), (1,), (3, 2))
    ]
    groups = [{"params": weights[:3]}, {"params": weights[3:], "weight_decay": 0.0}]
    return weights, cls(groups, lr=0.05, **settings)


def train(cls, settings, faults, steps=2):
    """Returns weights and state after some steps; faults: step -> numbers of the allocations that fail."""
    weights, optimizer = made(cls, settings)
    generator = torch.Generator().manual_seed(5)
    counts, interrupted = [], []
    for step in range(steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, dtype=weight.dtype, generator=generator)
        with failing(at=faults.get(step, ())) as mode:
            interrupted.append(taken(optimizer))
        counts.append(mode.count)
    state = copy.deepcopy(optimizer.state_dict())
    return [weight.detach().clone() for weight in weights], state, counts, interrupted


def assert_same(one, other):
    for got, want in zip(one[0], other[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)
    assert one[1]["param_groups"] == other[1]["param_groups"] and one[1]["state"].keys() == other[1]["state"].keys()
    for position, state in one[1]["state"].items():
        for name, value in state.items():
            torch.testing.assert_close(value, other[1]["state"][position][name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_allocation_may_fail(case):
    cls, settings = CASES[case]
    plain = train(cls, settings, {})
    for step in (0, 1):  # without state, and with it
        for number in range(plain[2][step]):
            faulty = train(cls, settings, {step: (number,)})
            assert faulty[3] == [at == step for at in range(2)]
            assert_same(faulty, plain)


class HandWritten(Optimizer):
    """An optimizer of somebody's own: state made parameter by parameter, and a norm over all parameters."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        weights = [(weight, group["lr"]) for group in self.param_groups for weight in group["params"]]
        size = torch.stack([weight.grad.norm() for weight, _ in weights]).norm()
        for weight, lr in weights:
            state = self.state[weight]
            if not state:
                state["count"], state["trace"] = 0, torch.zeros_like(weight)
            state["count"] += 1
            weight *= 1 - 0.1 * lr
            state["trace"].mul_(0.9)
            state["trace"] += weight.grad / size
            weight -= lr * state["trace"].sign() * state["trace"].abs().sqrt() / state["count"]


class Heir(AdamW):
    """A class of torch's that somebody has taken further."""


OWN = {
    "hand-written": lambda weights: HandWritten(weights),
    "heir": lambda weights: Heir(weights, lr=0.1, foreach=False),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, lr=0.01, momentum=0.9, centered=True, foreach=True),
    "rprop": lambda weights: torch.optim.Rprop(weights, foreach=False),
    "nadam": lambda weights: torch.optim.NAdam([{"params": weights[:2]}, {"params": weights[2:], "lr": 0.1}]),
}


def low_bit(name):
    def build(weights):
        pytest.importorskip(LIBRARIES[name][0])
        return low_bit_optimizer(name, [{"params": weights[:2]}, {"params": weights[2:]}], CPU, lr=0.1)

    return build


def of_library(library, name):
    def build(weights):
        pytest.importorskip(library)
        return getattr(importlib.import_module(f"{library}.optim"), name)(weights, lr=0.1)

    return build


ANY = {
    **OWN,
    **{name: low_bit(name) for name in ("adamw8bit", "adamw4bit", "adamwfp8")},
    "bitsandbytes-adamw8bit": of_library("bitsandbytes", "AdamW8bit"),
    "bitsandbytes-lion8bit": of_library("bitsandbytes", "Lion8bit"),
    "torchao-adamw8bit": of_library("torchao", "AdamW8bit"),
}


def train_any(build, at=(), step=None, steps=2):
    """Weights and state after some steps, and how many allocations each update had; `step`: the one that faults are in."""
    generator = torch.Generator().manual_seed(3)
    weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((7,), (64, 64), (3, 2))]
    optimizer, counts = build(weights), []
    with torch.compiler.set_stance("force_eager"):  # torchao compiles its update; what is compiled is not seen
        for number in range(steps):
            for weight in weights:
                weight.grad = torch.randn(weight.shape, generator=generator)
            with failing(at=at if number == step else ()) as mode:
                assert taken(optimizer) == (number == step and len(at) > 0)
            counts.append(mode.count)
    return optimizer, weights, counts


def assert_bitwise(one, other):
    for got, want in zip(one[1], other[1], strict=True):
        assert torch.equal(got, want)
    states = [[part[0].state[weight] for weight in part[1]] for part in (one, other)]
    for got, want in zip(*states, strict=True):
        assert got.keys() == want.keys()
        for name, value in want.items():
            if isinstance(value, torch.Tensor):
                plain = [one.dequantize() if hasattr(one, "dequantize") and type(one) is not torch.Tensor else one
                         for one in (got[name], value)]  # fmt: skip
                assert torch.equal(*plain), name
            else:
                assert got[name] == value, name


@pytest.mark.parametrize("name", ANY)
def test_any_optimizer_ends_whole(name):
    """The caller's own and low-bit ones, at each allocation of a first and of a later update."""
    train_any(ANY[name], steps=1)  # makes tables that are kept
    plain = train_any(ANY[name])
    for step in (0, 1):
        assert plain[2][step] > 0
        for number in range(plain[2][step]):
            assert_bitwise(train_any(ANY[name], (number,), step), plain)


PARTS = {
    "rounded-fused": lambda weight: rounded(weight, AdamW([weight], lr=0.1, fused=True)),
    "rounded-for-loop": lambda weight: rounded(weight, AdamW([weight], lr=0.1, foreach=False)),
    "rounded-adamw4bit": lambda weight: rounded(weight, low_bit("adamw4bit")([weight])),
    "fused": lambda weight: ParameterUpdate(AdamW([weight], lr=0.1, fused=True), [weight]),
    "restored": lambda weight: ParameterUpdate(AdamW([weight], lr=0.1, foreach=False), [weight]),
}


def rounded(weight, optimizer):
    return RoundedUpdate(optimizer, [weight], 0, SimpleNamespace(generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("name", PARTS)
def test_one_parameter_ends_whole(name):
    """With an optimizer of its own, rounded, or put back where a flag on the device says so; at each allocation."""

    def train(step=None, at=()):
        dtype = torch.bfloat16 if name.startswith("rounded") else torch.float32
        weight = nn.Parameter(torch.full((64, 64), 0.5, dtype=dtype))
        part, counts, good = PARTS[name](weight), [], torch.zeros(())
        unbroken = UnbrokenUpdate(HostPool(CPU), lambda: [*part.held(), weight.grad])
        for number in range(2):
            weight.grad = torch.full_like(weight, 0.1 * (number + 1))
            unbroken.begin()
            with failing(at=at if number == step else ()) as mode:
                unbroken.take(part, good)
            assert unbroken.interrupted == (number == step) and unbroken.changed
            counts.append(mode.count)
        state = {key: torch.as_tensor(value).clone() for key, value in part.state.items()}
        assert list(part.optimizer.state) == [weight], "held once"
        return weight, state, counts

    train()  # makes tables that are kept
    weight, state, counts = train()
    for step in (0, 1):
        for number in range(counts[step]):
            faulty = train(step, (number,))
            assert torch.equal(faulty[0], weight) and faulty[1].keys() == state.keys()
            assert all(torch.equal(faulty[1][key], value) for key, value in state.items())


def test_memory_that_stays_short():
    """Before the first change the update is left undone; after it there is no way back."""
    cls, settings = CASES["adamw-for-loop"]
    weights, optimizer = made(cls, settings)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    before = [weight.detach().clone() for weight in weights]
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"), failing(at=range(100)):
        taken(optimizer)
    assert all(torch.equal(weight, old) for weight, old in zip(weights, before, strict=True)) and not optimizer.state
    with pytest.raises(OutOfMemoryError, match="after some parameters were changed"), failing(at=range(12, 100)):
        taken(optimizer)


def test_a_part_that_stays_short_behind_one_that_is_finished():
    weights, optimizer = made(*CASES["muon-for-loop"])
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    adamw = optimizer.parts[1]

    def short(closure=None):
        raise RuntimeError(MESSAGE)

    adamw.step = short
    with pytest.raises(OutOfMemoryError, match="after some parameters were changed") as error:
        taken(optimizer)
    assert not error.value.undone


def test_another_error_passes():
    _, optimizer = made(AdamW, {})

    def step(closure=None):
        raise RuntimeError("a shape is wrong")

    optimizer.step = step
    with pytest.raises(RuntimeError, match="a shape is wrong"):
        taken(optimizer)


class Limit(TorchDispatchMode):
    """Memory that is really short: an operator whose results would go over the limit fails before it runs."""

    def __init__(self, tensors, spare):
        super().__init__()
        self.storages = {}
        for tensor in tensors:
            self.keep(tensor)
        self.peak = self.start = self.live()
        self.limit = self.start + spare
        self.failed = 0

    def keep(self, tensor):
        storage = tensor.untyped_storage()
        self.storages[storage._cdata] = weakref.ref(storage)

    def live(self):
        """Bytes of what is alive and on the device; what has left has a storage of nothing."""
        alive = {key: held() for key, held in self.storages.items()}
        self.storages = {key: held for key, held in self.storages.items() if alive[key] is not None}
        return sum(storage.nbytes() for storage in alive.values() if storage is not None)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if str((kwargs or {}).get("device")) == "meta":
            return func(*args, **(kwargs or {}))
        before = self.live()
        result = func(*args, **(kwargs or {}))
        if allocates(func):
            made = result if isinstance(result, list | tuple) else [result]
            size = sum(one.untyped_storage().nbytes() for one in made)
            if size and before + size > self.limit:
                self.failed += 1
                raise RuntimeError(MESSAGE)
            for one in made:
                self.keep(one)
            self.peak = max(self.peak, before + size)
        return result


@pytest.mark.parametrize("name", ["foreach", "for-loop", "muon-foreach", "muon-for-loop", "hand-written"])
def test_memory_that_is_really_short(name):
    """With every amount of room from nothing to all it takes, a later update is finished or not begun."""
    build = {
        "foreach": lambda weights: AdamW(weights, lr=0.1, weight_decay=0.1, foreach=True),
        "for-loop": lambda weights: AdamW(weights, lr=0.1, weight_decay=0.1, foreach=False),
        "muon-foreach": lambda weights: MuonWithAdamW(weights, lr=0.1, kernels={"foreach": True}),
        "muon-for-loop": lambda weights: MuonWithAdamW(weights, lr=0.1, kernels={"foreach": False}),
        "hand-written": OWN["hand-written"],
    }[name]

    def second_step(spare):
        generator = torch.Generator().manual_seed(3)
        weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((64, 64), (7,), (64, 128))]
        optimizer = build(weights)
        for number in range(2):
            for weight in weights:
                weight.grad = torch.randn(weight.shape, generator=generator)
            if number == 0:
                optimizer.step()
        before = [weight.detach().clone() for weight in weights]
        held = [*weights, *(weight.grad for weight in weights), *JointUpdate(optimizer).held()]
        memory = Limit(held, spare)
        try:
            with memory:
                short = taken(optimizer)
        except RuntimeError:
            assert all(torch.equal(*pair) for pair in zip(weights, before, strict=True))
            return memory, None
        assert short == (memory.failed > 0)
        return memory, (optimizer, weights)

    plain, want = second_step(2**40)
    needed = plain.peak - plain.start
    assert needed > 0 and plain.failed == 0
    finished = 0
    for share in range(0, 21):
        memory, got = second_step(needed * share // 20)
        if got is not None:
            assert_bitwise(got, want)
            finished += memory.failed > 0
    assert got is not None and memory.failed == 0
    if name != "hand-written":  # its first temporaries are its largest, so it is not begun
        assert finished > 0, "with less than all of it some updates are finished with the host's help"


def test_state_is_made_before_anything_is_changed():
    weights = [nn.Parameter(torch.ones(4)) for _ in range(3)]
    optimizer = AdamW([{"params": weights[:1]}, {"params": weights[1:]}], lr=0.1, foreach=False)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"), failing(at=range(5, 100)):  # the last one's state
        taken(optimizer)
    assert not optimizer.state and all(torch.equal(weight, torch.ones(4)) for weight in weights)


def test_what_is_compiled_stays_compiled():
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda weight: weight.mul_(2), backend=counter)

    class Compiled(HandWritten):
        @torch.no_grad()
        def step(self, closure=None):
            compiled(self.param_groups[0]["params"][0])

    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    taken(Compiled([weight]))
    assert counter.frame_count == 1 and torch.equal(weight, torch.full((3,), 2.0))
