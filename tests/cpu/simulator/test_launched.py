"""A script that is one of several processes: the first is simulated, however they are started."""

import pytest

from snugfit.errors import CannotSimulateError, InputError
from snugfit.simulator.own_script import estimate_script

TRAIN = """
import os
from functools import partial
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

WIDTH = 4096

def main(rank, ranks, wrap):
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    some = dist.new_group([0, 1], backend="gloo")
    torch.cuda.set_device(rank)
    model = wrap(nn.Linear(WIDTH, WIDTH, bias=False).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        model(torch.randn(8, WIDTH, device=rank)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    raise RuntimeError("a fourth step")

def fully(model, device_ids):
    return FullyShardedDataParallel(model, device_id=device_ids[0], use_orig_params=True)

if __name__ == "__main__":
"""
SPAWNED = (
    "    mp.spawn(main, args=(torch.cuda.device_count(), DistributedDataParallel), nprocs=torch.cuda.device_count())"
)
STARTED = """
    several = [mp.Process(target=main, args=(rank, 2, fully)) for rank in range(2)]
    for one in several:
        one.start()
    for one in several:
        one.join()
"""
LOOKING = "    mp.spawn(main, args=(2, partial(DistributedDataParallel, find_unused_parameters=True)), nprocs=2)"
BY_TORCHRUN = '    main(int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"]), DistributedDataParallel)'
WEIGHTS = 4096 * 4096 * 4


def estimated(folder, end, **given):
    (folder / "train.py").write_text(TRAIN + end)
    return estimate_script(str(folder / "train.py"), device="rtx-4090", **given)


@pytest.mark.parametrize(("end", "share"), [(SPAWNED, 1), (LOOKING, 1), (STARTED, 1 / 2), (BY_TORCHRUN, 1)])
def test_the_first_process(tmp_path, end, share):
    found = estimated(tmp_path, end, gpus=2)
    assert (found.gpus, found.ranks[0].ranks) == (2, "0")
    assert found.anatomy_bytes["weights"] == share * WEIGHTS
    if share == 1:  # DDP has buckets beside the gradients of the model
        assert found.anatomy_bytes["gradients"] == 2 * WEIGHTS
    assert found.steps == 3 and found.parameters == 4096 * 4096


def test_one_started_alone_asks_how_many(tmp_path):
    with pytest.raises(InputError, match="the variable LOCAL_RANK"):
        estimated(tmp_path, BY_TORCHRUN)


FILLED_LATER = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
with torch.device("meta"):
    model = nn.Sequential(nn.Linear(4096, 4096, bias=False))
fully_shard(model, mesh=dist.init_device_mesh("cuda", (2,)))
model.to_empty(device="cuda")
model[0].reset_parameters()
for fill in (nn.init.normal_, nn.init.trunc_normal_):
    fill(model[0].weight)
with torch.no_grad():
    model[0].weight.bernoulli_(0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(8, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_share_is_filled_with_random_numbers(tmp_path):
    (tmp_path / "train.py").write_text(FILLED_LATER)
    found = estimate_script(str(tmp_path / "train.py"), device="rtx-4090", gpus=2)
    assert (found.gpus, found.steps) == (2, 3)
    assert found.anatomy_bytes["weights"] == WEIGHTS / 2
    assert found.anatomy_bytes["gradients"] == WEIGHTS * 3 / 2  # the whole one, and what is left of it here


def test_processes_that_do_not_meet(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\nweight = torch.nn.Parameter(torch.ones(8))\noptimizer = torch.optim.SGD([weight])\n"
        "for _ in range(9):\n    (weight * weight).sum().backward()\n    optimizer.step()\n"
    )
    with pytest.warns(match="the script made no process group"):
        assert estimate_script(str(tmp_path / "train.py"), device="cpu", gpus=2).gpus == 1


WITHIN_ONE_PROCESS = """
import torch
from torch import nn
first, second = nn.Linear(64, 64).to("cuda:0"), nn.Linear(64, 4).cuda(OTHER)
if torch.cuda.device_count() > 1:
    first = nn.DataParallel(first)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()])
for step in range(4):
    second(first(torch.randn(8, 64, device="cuda:0"))).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("other", [0, 1])
def test_cards_within_one_process_are_one_which_is_told(tmp_path, other, recwarn):
    (tmp_path / "train.py").write_text(WITHIN_ONE_PROCESS.replace("OTHER", str(other)))
    assert estimate_script(str(tmp_path / "train.py"), device="rtx-4090").steps == 3
    assert any("names cuda:0 and cuda:1" in str(one.message) for one in recwarn) == bool(other)


def test_a_model_whose_copies_stand_on_several_cards_is_refused(tmp_path):
    (tmp_path / "train.py").write_text(WITHIN_ONE_PROCESS.replace("OTHER", "0"))
    with pytest.raises(CannotSimulateError, match=r"DistributedDataParallel in its place.* --gpus 2 estimates that"):
        estimate_script(str(tmp_path / "train.py"), device="rtx-4090", gpus=2)
