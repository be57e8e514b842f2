"""Collectives as torch's operators ask for them: kind, bytes of the whole tensor, ranks and machines."""

import pytest
import torch

dist = pytest.importorskip("torch.distributed")
pytest.importorskip("torch.testing._internal.distributed.fake_pg")

from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from snugfit.devices import device_named  # noqa: E402
from snugfit.operators.collective_calls import collective_of, run_of  # noqa: E402
from snugfit.recording.clock import HOST_LAUNCH_SECONDS, HOST_OPERATOR_SECONDS, clock  # noqa: E402
from snugfit.recording.communication import collective_seconds  # noqa: E402
from snugfit.recording.operator_run import Collective  # noqa: E402
from snugfit.recording.trace_builder import TraceBuilder  # noqa: E402

RANKS, CARDS = 16, 8


@pytest.fixture(scope="module")
def groups():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield {"all": dist.group.WORLD, "machine": dist.new_group(list(range(8))), "across": dist.new_group([0, 8])}
    dist.destroy_process_group()


class Seen(TorchDispatchMode):
    def __init__(self, cards, read=collective_of):
        super().__init__()
        self.cards, self.found, self.read = cards, [], read

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.found.append(self.read(func, args, self.cards))
        return func(*args, **(kwargs or {}))


def seen(call, cards=CARDS):
    with Seen(cards) as mode:
        call()
    (found,) = mode.found
    return found


def floats(count):
    return torch.zeros(count)


CALLS = {
    "all_reduce": (lambda g: dist.all_reduce(floats(100), group=g), 400),
    "all_gather_into_tensor": (lambda g: dist.all_gather_into_tensor(floats(8 * g.size()), floats(8), group=g), 32),
    "reduce_scatter_tensor": (lambda g: dist.reduce_scatter_tensor(floats(8), floats(8 * g.size()), group=g), 32),
    "all_gather": (lambda g: dist.all_gather([floats(8) for _ in range(g.size())], floats(8), group=g), 32),
    "reduce_scatter": (lambda g: dist.reduce_scatter(floats(8), [floats(8) for _ in range(g.size())], group=g), 32),
    "all_to_all_single": (lambda g: dist.all_to_all_single(floats(8 * g.size()), floats(8 * g.size()), group=g), 32),
    "gather": (lambda g: dist.gather(floats(8), [floats(8) for _ in range(g.size())], dst=0, group=g), 32),
    "scatter": (lambda g: dist.scatter(floats(8), [floats(8) for _ in range(g.size())], src=0, group=g), 32),
    "broadcast": (lambda g: dist.broadcast(floats(100), 0, group=g), 400),
    "reduce": (lambda g: dist.reduce(floats(100), 0, group=g), 400),
}
KINDS = {
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}
WHOLE = ("all_reduce", "broadcast", "reduce")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("group, ranks, machines", [("all", 16, 2), ("machine", 8, 1), ("across", 2, 2)])
def test_every_collective_is_known(groups, name, group, ranks, machines):
    call, nbytes = CALLS[name]
    found = seen(lambda: call(groups[group]))
    size = nbytes if name in WHOLE else nbytes * ranks
    assert found == Collective(KINDS.get(name, name), size, ranks, machines)


@pytest.mark.parametrize("other, machines", [(1, 1), (8, 2)])
def test_a_send_goes_to_one_rank(groups, other, machines):
    assert seen(lambda: dist.send(floats(10), other)) == Collective("send", 40, 2, machines)
    assert seen(lambda: dist.recv(floats(10), other)) == Collective("send", 40, 2, machines)


def test_all_ranks_are_in_one_machine_unless_something_is_said(groups):
    assert seen(lambda: dist.all_reduce(floats(1)), cards=None) == Collective("all_reduce", 4, 16, 1)


def test_who_is_not_the_root_sends_a_part(groups):
    found = seen(lambda: dist.gather(floats(8), None, dst=1))
    assert found == Collective("gather", 32 * RANKS, RANKS, 2)


def test_what_is_seen_is_timed(groups):
    card, build = device_named("a100-80gb"), TraceBuilder()
    with Seen(CARDS, run_of) as mode:
        dist.all_reduce(floats(2**20))
        dist.barrier(group=groups["machine"])
    for run in mode.found:
        build.run(run)
    assert [run.blocking for run in mode.found] == [False, True]
    timing = clock(build.build(), card)
    assert timing.communication_seconds == sum(collective_seconds(run.collective, card) for run in mode.found)
    issue = HOST_OPERATOR_SECONDS + HOST_LAUNCH_SECONDS  # of the barrier, while the first one runs
    assert timing.exposed_communication_seconds == pytest.approx(timing.communication_seconds - issue)
