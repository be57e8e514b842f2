"""An update that fails at any of its allocations comes out as if nothing had happened, or says that it could not."""

import copy

import pytest
import torch
from failing_allocations import MESSAGE, failing, nothing_to_collect  # noqa: F401 - a fixture for all tests
from torch import nn
from torch.optim import SGD, Adafactor, Adam, AdamW

from snugfit import OutOfMemoryError
from snugfit.techniques.low_bit_optimizer.apply import LIBRARIES, low_bit_optimizer
from snugfit.techniques.muon.apply import MuonWithAdamW
from snugfit.training.interrupted_update import carried_through

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


def made(cls, settings):
    generator = torch.Generator().manual_seed(3)
    weights = [
        nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=generator))
        for shape in ((4, 3), (3,), (2, 5), (1,), (3, 2))
    ]
    groups = [{"params": weights[:3]}, {"params": weights[3:], "weight_decay": 0.0}]
    return weights, cls(groups, lr=0.05, **settings)


def train(cls, settings, faults, steps=3):
    """Returns weights and state after some steps; faults: step -> numbers of the allocations that fail."""
    weights, optimizer = made(cls, settings)
    generator = torch.Generator().manual_seed(5)
    counts, interrupted = [], []
    for step in range(steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, dtype=weight.dtype, generator=generator)
        with failing(at=faults.get(step, ())) as mode:
            interrupted.append(carried_through(optimizer, optimizer.step, CPU))
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
    for step in (0, 2):
        for number in range(plain[2][step]):
            if case == "momentum-for-loop" and step == 0:
                continue  # the one case that cannot be finished; see below
            faulty = train(cls, settings, {step: (number,)})
            assert faulty[3] == [at == step for at in range(3)]
            assert_same(faulty, plain)


def test_a_first_momentum_that_is_lost_is_said():
    """SGD keeps the momentum of a group when all of it is done; with weight decay the gradient cannot be told again."""
    cls, settings = CASES["momentum-for-loop"]
    with pytest.raises(OutOfMemoryError, match="inside the update, after some parameters were changed") as error:
        train(cls, settings, {0: (3,)})
    assert not error.value.undone and error.value.exit_code == 3


def test_an_optimizer_that_is_not_known_is_not_guessed_at():
    class Other(AdamW):
        pass

    with pytest.raises(OutOfMemoryError, match="the update of Other, which cannot be finished"):
        train(Other, {"foreach": False}, {1: (0,)})


def test_memory_that_stays_short():
    """Before the first change the update is left undone; after it there is no way back."""
    cls, settings = CASES["adamw-for-loop"]
    weights, optimizer = made(cls, settings)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    before = [weight.detach().clone() for weight in weights]
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"), failing(at=range(100)):
        carried_through(optimizer, optimizer.step, CPU)
    assert all(torch.equal(weight, old) for weight, old in zip(weights, before, strict=True)) and not optimizer.state
    with pytest.raises(OutOfMemoryError, match="after some parameters were changed"), failing(at=range(12, 100)):
        carried_through(optimizer, optimizer.step, CPU)


def test_a_part_that_stays_short_behind_one_that_is_finished():
    weights, optimizer = made(*CASES["muon-for-loop"])
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    adamw = optimizer.parts[1]

    def short(closure=None):
        raise RuntimeError(MESSAGE)

    adamw.step = short
    with pytest.raises(OutOfMemoryError, match="after some parameters were changed") as error:
        carried_through(optimizer, optimizer.step, CPU)
    assert not error.value.undone


@pytest.mark.parametrize("name", ["adamw8bit", "adamw4bit", "adamwfp8"])
def test_low_bit_state_ends_half_way(name):
    """Their kernels count no versions; what to do then is in docs/planning.md."""
    pytest.importorskip(LIBRARIES[name][0])

    def first_step(*at):
        weights = [nn.Parameter(torch.ones(64, 64)) for _ in range(2)]
        optimizer = low_bit_optimizer(name, [{"params": weights}], CPU, lr=0.1)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        with failing(at=at) as mode:
            carried_through(optimizer, optimizer.step, CPU)
        return mode.count

    first_step()  # makes tables that are kept
    count = first_step()
    with pytest.raises(OutOfMemoryError, match=r"which cannot be finished.*go back to a checkpoint") as error:
        first_step(count - 1)
    assert not error.value.undone and error.value.exit_code == 3


def test_another_error_passes():
    _, optimizer = made(AdamW, {})

    def take():
        raise RuntimeError("a shape is wrong")

    with pytest.raises(RuntimeError, match="a shape is wrong"):
        carried_through(optimizer, take, CPU)


def test_a_mode_that_hides_versions_is_seen():
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    _, optimizer = made(AdamW, {"foreach": True})

    def take():
        raise MemoryError

    with Mode(), pytest.raises(OutOfMemoryError, match="cannot be finished"):
        carried_through(optimizer, take, CPU)
