"""One process of many that do not exist."""

import pytest
import torch
from run_code import run_code

from snugfit.private_torch import one_rank


@pytest.mark.parametrize(("length", "ranks"), [(8, 4), (5, 3), (2, 4), (7, 8), (1, 1)])
def test_a_chunk_is_cut_as_torch_cuts_all(length, ranks):
    """OwnChunk, only_own_chunks"""
    module, name, made = one_rank.only_own_chunks()
    tensor = torch.arange(length * 3).view(length, 3)
    for number, chunk in enumerate(getattr(module, name)(tensor, ranks, dim=0)):
        mine = made(tensor, ranks, 0)[number]
        assert mine.numel() == chunk.numel() and torch.equal(mine.flatten(), chunk.flatten())


_ONE_OF_THREE = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from snugfit.attributes import attributes_set
from snugfit.private_torch import collectives, one_rank, shared_units

assert not collectives.knows_groups()
one_rank.init_alone(3, 2, "cpu")
assert collectives.knows_groups() and torch.distributed.get_world_size() == 3
mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("shard",))
for owner, name, method in one_rank.meshes_with_numbers():
    assert callable(getattr(owner, name)) and method.__wrapped__ is getattr(owner, name)
assert {"__init__", "__getitem__"} <= {name for _, name, _ in one_rank.meshes_with_numbers()}
model = torch.nn.Linear(4, 5)
state, kind = dict(vars(model)), type(model)
state["_parameters"] = dict(model._parameters)
fully_shard(model, mesh=mesh)
assert collectives.own_part(model.weight).shape == (1, 4)
assert collectives.own_part(state["_parameters"]["weight"]) is state["_parameters"]["weight"]
(owner, name, kept), (flat, known, same) = one_rank.shares_by_storage()
assert hasattr(flat, known) and same(model.weight, model.weight) and not same(model.weight, torch.ones(4))
group = model._get_fsdp_state()._fsdp_param_groups[0] if hasattr(model._get_fsdp_state(), "_fsdp_param_groups") else (
    model._get_fsdp_state()._fsdp_param_group
)
before = group.fsdp_params[0]._sharded_param_data
kept(group.fsdp_params[0])
assert group.fsdp_params[0]._sharded_param_data is before
(operator,) = shared_units.gathering()
assert [argument.name for argument in operator._schema.arguments][-1] == "out"
model.__class__ = kind
vars(model).clear()
vars(model).update(state)
shared_units.forget_shares(model)

class Parts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.used(x)

class Watch:
    def __init__(self, model):
        self.names = {weight: name for name, weight in model.named_parameters()}
        self.seen, self.ways, self.collected = {}, [], []

    def gradients(self, weights, here):
        self.seen.update(zip([self.names[weight] for weight in weights], here, strict=True))

    def before(self, number, way):
        self.ways.append((number, way))

    def whole(self, weights, *, there):
        self.collected.append(([self.names[share] for share, _ in weights], [tuple(one.shape) for _, one in weights], there))

model = Parts()
fully_shard(model, mesh=mesh)
watch = Watch(model)
shared_units.watch_shared_out(model, watch)
model(torch.randn(2, 4)).sum().backward()
assert watch.seen == {"used.weight": True, "used.bias": True, "spare.weight": False, "spare.bias": False}
assert all(weight.grad is not None and bool((weight.grad.to_local() == 0).all()) for weight in model.spare.parameters())
assert watch.ways[0] == (0, "collects the weights") and watch.ways[-1] == (0, "adds up the gradients")
names, shapes, _ = watch.collected[0]
assert dict(zip(names, shapes, strict=True))["used.weight"] == tuple(model.used.weight.shape)
assert [there for *_, there in watch.collected] == [True, False]
watch.ways.clear()
torch.func.functional_call(model, {"used.weight": torch.zeros(model.used.weight.shape)}, (torch.randn(2, 4),))
assert (0, "has other weights") in watch.ways

class Hidden(Parts):
    def forward(self, box):
        box["x"] = self.used(box["x"])

model, box = torch.nn.Sequential(Hidden()), {"x": torch.randn(2, 4)}
fully_shard(model[0], mesh=mesh, reshard_after_forward=False)
fully_shard(model, mesh=mesh, reshard_after_forward=False)
watch = Watch(model)
shared_units.watch_shared_out(model, watch)
model[0](box)
box["x"].sum().backward()
model[0]._get_fsdp_state()._fsdp_param_group.post_backward()
assert (1, "misses the backward pass") in watch.ways or (0, "misses the backward pass") in watch.ways, watch.ways
print("well")
"""


def test_one_of_three_processes_that_are_not_there():
    """knows_groups, init_alone, meshes_with_numbers, own_part, shares_by_storage, gathering, forget_shares,
    watch_shared_out"""
    done = run_code(_ONE_OF_THREE)
    assert done.stdout.strip().endswith("well"), done.stderr


_GROUPS_OF_A_SCRIPT = """
import torch
import torch.distributed as dist
from snugfit import private_torch
from snugfit.attributes import replaced
from snugfit.private_torch import collectives, one_rank

class NoOneAnswers(private_torch.DirectMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace != collectives.COLLECTIVES:
            return func(*args, **(kwargs or {}))
        kept = list(args[0])
        return collectives.result_of(func, args, lambda: said.append("over"), lambda: said.append("asked") or kept)

said = []
changes = one_rank.groups_by(lambda backend, **_: one_rank.init_alone(2, 0, "privateuseone"))
changes += one_rank.unverified()
assert all(hasattr(owner, name) for owner, name, _ in changes)
with replaced(changes):
    dist.init_process_group("nccl", world_size=2, rank=0)
    assert dist.get_backend(dist.new_group([0, 1], backend="nccl")) == "fake"
    assert dist.get_default_backend_for_device("cuda") == "nccl"
    with NoOneAnswers():
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        said.clear()
        model(torch.ones(1, 2)).sum().backward()
assert said == ["asked", "over"], said
dist.destroy_process_group()
print("well")
"""


def test_groups_that_a_script_makes():
    """groups_by, unverified, result_of: DDP asks for what will come, and waits for it at the end of backward"""
    done = run_code(_GROUPS_OF_A_SCRIPT)
    assert done.stdout.strip().endswith("well"), done.stderr


_ONE_OF_TWO_THAT_CUT = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.parallel import parallelize_module
from snugfit.private_torch import collectives, one_rank

class Transposed(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(inputs, outputs))
        self.bias = torch.nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight)

one_rank.init_alone(2, 1, "cpu")
mesh = init_device_mesh("cpu", (2,))
columns, rows = collectives.styles_of_transposed()
first, second = Transposed(4, 6), Transposed(6, 4)
last = first.weight.detach()[:, 3:]
parallelize_module(first, mesh, columns(), src_data_rank=None)
parallelize_module(second, mesh, rows(), src_data_rank=None)
held = [collectives.own_part(one) for one in (first.weight, first.bias, second.weight, second.bias)]
assert [tuple(one.shape) for one in held] == [(4, 3), (3,), (3, 4), (4,)] and torch.equal(held[0], last)
found = second(first(torch.randn(2, 4)))
assert found.shape == (2, 4)
found.sum().backward()
assert first.weight.grad.placements == first.weight.placements
part, again = collectives.taken_apart(first.weight)
assert part is held[0] and again(part).placements == first.weight.placements and again(part).shape == (4, 6)
assert collectives.taken_apart(part)[1](part) is part
sums = DTensor.from_local(torch.ones(4), mesh, [Partial()], run_check=False)
assert collectives.lying_as(sums, second.bias).placements == second.bias.placements
assert collectives.lying_as(part, part) is part and collectives.lying_as(sums, sums) is sums
collectives.forget_layouts()
print("well")
"""


def test_one_of_two_processes_that_cut_layers():
    """styles_of_transposed, taken_apart, lying_as, forget_layouts"""
    done = run_code(_ONE_OF_TWO_THAT_CUT)
    assert done.stdout.strip().endswith("well"), done.stderr


_FLAT_ROWS = """
import torch
from snugfit.private_torch import one_rank
from torch.distributed.fsdp import FullyShardedDataParallel

one_rank.init_alone(3, 2, "cpu")
for originals in (True, False):
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 7))
    first = FullyShardedDataParallel(model[0], device_id=torch.device("cpu"), use_orig_params=originals)
    model = torch.nn.Sequential(first, model[1])
    assert sum(one.numel() for one in model.parameters()) < 67
    assert one_rank.all_parameters(model) == 67, one_rank.all_parameters(model)
print("done")
"""


def test_parameters_of_rows_that_are_shared_out_are_counted_whole():
    """all_parameters"""
    done = run_code(_FLAT_ROWS)
    assert done.stdout.strip() == "done", done.stderr
