"""What ranks do in `test_ranks.py`, each in its own process."""

import warnings
from unittest import mock

import torch
import torch.distributed as dist
from rank_processes import card_among_others
from small_models import cross_entropy, make_batches, make_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from snugfit.pretend_card import ranks as ranks_of_card
from snugfit.pretend_card.present import card_present  # noqa: F401 - imported once for all ranks

SAMPLES, STEPS = 8, 3
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")


# -- collectives


def _all_reduce(rank, world, made, op=dist.ReduceOp.SUM):
    values = made(6)
    dist.all_reduce(values, op)
    return values


def _broadcast(rank, world, made):
    values = made(5)
    dist.broadcast(values, src=world - 1)
    return values


def _all_gather_into_tensor(rank, world, made):
    gathered = made(3 * world)
    dist.all_gather_into_tensor(gathered, made(3))
    return gathered


def _reduce_scatter_tensor(rank, world, made):
    share = made(3)
    dist.reduce_scatter_tensor(share, made(3 * world))
    return share


def _all_gather(rank, world, made):
    gathered = [made(4) for _ in range(world)]
    dist.all_gather(gathered, made(4) * 2)
    return torch.cat(gathered)


def _reduce_scatter(rank, world, made):
    share = made(4)
    dist.reduce_scatter(share, [made(4) * (1 + number) for number in range(world)])
    return share


def _all_to_all_single(rank, world, made):
    got = made(2 * world)
    dist.all_to_all_single(got, made(2 * world) * 3)
    return got


def _reduce(rank, world, made):
    values = made(4)
    dist.reduce(values, dst=0)
    return values if rank == 0 else made(1)


def _send_and_recv(rank, world, made):
    """Everybody sends first: work that is queued must not stop for who receives later."""
    got = made(4)
    sent = dist.isend(made(4) * 5, (rank + 1) % world)
    dist.recv(got, (rank - 1) % world)
    sent.wait()
    return got


def _functional(rank, world, made):
    from torch.distributed import _functional_collectives as functional

    return functional.all_reduce(made(4), "sum", dist.group.WORLD) * 2


COLLECTIVES = (
    _all_reduce, _broadcast, _all_gather_into_tensor, _reduce_scatter_tensor, _all_gather, _reduce_scatter,
    _all_to_all_single, _reduce, _send_and_recv, _functional,
)  # fmt: skip
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64)


def compare_collectives(rank, world, meeting, seed):
    """Returns (name, dtype) -> whether a collective of the card's tensors gave what it gives for the host's, by gloo."""
    found = {}
    with card_among_others(rank, world, meeting, seed) as card:
        for collective in COLLECTIVES:
            for dtype in DTYPES:

                def made(count, dtype=dtype, device="cpu"):
                    return (torch.arange(count) + 10 * rank).to(dtype).to(device) * 1

                wanted = collective(rank, world, made)
                got = collective(rank, world, lambda count: made(count, device=card.personality.device))
                dist.barrier()
                found[collective.__name__, str(dtype)] = torch.equal(got.cpu(), wanted)
        average = torch.full((3,), rank + 1.0, device=card.personality.device)
        dist.all_reduce(average, dist.ReduceOp.AVG)
        found["average", ""] = average.cpu().tolist() == [(world + 1) / 2] * 3
    return found


def reduce_beside(rank, world, meeting, seed, waits):
    """Returns whether the sum over ranks was there when it was read."""
    with card_among_others(rank, world, meeting, seed) as card:
        values = torch.full((1000,), rank + 1.0, device=card.personality.device)
        work = dist.all_reduce(values, async_op=True)
        if waits:
            work.wait()
        return values.sum().item() == 1000 * world * (world + 1) / 2


def give_up_before_waiting(rank, world, meeting, seed):
    """Returns whether a collective saw an input that nobody but its work held on to, as NCCL's does."""
    with card_among_others(rank, world, meeting, seed) as card:
        device = card.personality.device
        gathered = torch.empty(1000 * world, device=device)
        work = dist.all_gather_into_tensor(gathered, torch.full((1000,), rank + 1.0, device=device), async_op=True)
        torch.full((1000,), 99.0, device=device).sum().item()
        work.wait()
        return gathered.sum().item() == 1000 * world * (world + 1) / 2


def free_under_another_stream(rank, world, meeting, seed, waits):
    """Returns whether a collective saw its input, which went back to the stream it came from while another one ran it."""
    with card_among_others(rank, world, meeting, seed) as card:
        device = card.personality.device
        shares = torch.full((1000,), rank + 1.0, device=device)
        gathered = torch.empty(1000 * world, device=device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            dist.all_gather_into_tensor(gathered, shares)
        if waits:
            torch.cuda.current_stream().wait_stream(side)
        del shares
        torch.full((1000,), 99.0, device=device).sum().item()
        torch.cuda.current_stream().wait_stream(side)
        return gathered.sum().item() == 1000 * world * (world + 1) / 2


def mix_groups(rank, world, meeting, seed):
    """Returns what is left after sums over crossing groups, with collectives of the host and new groups between them."""
    with card_among_others(rank, world, meeting, seed) as card:
        rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        mine = torch.full((4,), float(rank), device=card.personality.device)
        for number in range(6):
            work = dist.all_reduce(mine, group=rows[rank // 2], async_op=True)
            if number == 2:
                columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
            if number == 3:
                dist.all_gather_object([None] * world, rank)
            work.wait()
            if number > 2:
                dist.all_reduce(mine, group=columns[rank % 2])
            if (number + rank) % 3 == 0:  # ranks look at different times
                mine.sum().item()
        return mine.tolist()


# -- training


def _share(batch, rank, world):
    return tuple(part.chunk(world)[rank] for part in batch)


def _values(model):
    return {name: _whole(value).cpu() for name, value in model.state_dict().items()}


def _whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def train_by_hand(rank, world, meeting, seed, waits=True):
    """Data parallel: gradients are summed beside the backward pass, one by one."""
    with card_among_others(rank, world, meeting, seed) as card:
        device = card.personality.device
        model = make_model("mlp").to(device)
        under_way = []

        def reduce(weight):
            weight.grad /= world
            under_way.append(dist.all_reduce(weight.grad, async_op=True))

        for weight in model.parameters():
            weight.register_post_accumulate_grad_hook(reduce)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for batch in make_batches("mlp", SAMPLES, STEPS):
            inputs, labels = (part.to(device) for part in _share(batch, rank, world))
            cross_entropy(model(inputs), (inputs, labels)).backward()
            for work in under_way if waits else ():
                work.wait()
            optimizer.step()
            optimizer.zero_grad()
            under_way.clear()
        return _values(model)


def train_sharded(rank, world, meeting, seed, reshard=True, offload=False, groups=1, waits=True, clip=False):
    """FSDP2; returns the weights."""
    with card_among_others(rank, world, meeting, seed) as card:
        device = card.personality.device
        shape = (world,) if groups == 1 else (groups, world // groups)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        policy = {"offload_policy": CPUOffloadPolicy()} if offload else {}
        model = make_model("vit").eval()  # without dropout
        if not offload:
            model.to(device)
        for block in model.encoder.layers:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard, **policy)
        fully_shard(model, mesh=mesh, reshard_after_forward=reshard, **policy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        issue = ranks_of_card.collectives.result_of
        forgotten = mock.patch.object(
            ranks_of_card.collectives, "result_of", lambda operator, args, wait: issue(operator, args, lambda: None)
        )
        if not waits:
            forgotten.start()
        for batch in make_batches("vit", SAMPLES, STEPS):
            inputs, labels = (part.to(device) for part in _share(batch, rank, world))
            cross_entropy(model(inputs), (inputs, labels)).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        mock.patch.stopall()
        return _values(model)


def count_memory(rank, world, meeting, seed, sharded):
    """Returns the bytes of a model of equal layers on this rank, before a step and at most in it."""
    with card_among_others(rank, world, meeting, seed) as card:
        device = card.personality.device
        model = torch.nn.Sequential(*(torch.nn.Linear(256, 256, bias=False) for _ in range(8))).to(device)
        if sharded:
            mesh = init_device_mesh(device.type, (world,))
            for layer in model:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        before = torch.cuda.memory_allocated()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.ones(4, 256, device=device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return before, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
