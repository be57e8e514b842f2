"""Operators of `torch.distributed` as a mode sees them, and gloo's, which are over when they return."""

import torch
from backend_in_a_worker import in_a_worker
from run_code import run_code

from snugfit.private_torch import collectives


def test_collectives():
    """What a mode sees of them, and what it may return in their place; register_process_group and before_groups_change."""
    said = in_a_worker(
        """
import torch, torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from snugfit import private_torch
from snugfit.private_torch import collectives, dispatcher
collectives.register_process_group("ours", "privateuseone")
before = []
class Watch(private_torch.DirectMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == collectives.FUNCTIONAL:
            with self:
                return dispatcher.run_explicit_body(func, args, kwargs or {})
        if func.namespace != collectives.COLLECTIVES:
            return func(*args, **(kwargs or {}))
        named = dict(zip([one.name for one in func._schema.arguments], args))
        print(func, collectives.group_of(named["process_group"]).size(), collectives.is_average(named["reduce_op"]))
        named["reduce_op"] = collectives.sum_of_ranks()
        work = collectives.start(func, list(named.values()))
        return collectives.result_of(func, args, lambda: print("waits", work.wait()))
with collectives.before_groups_change(lambda: before.append(1)):
    dist.init_process_group("ours", store=dist.HashStore(), rank=0, world_size=1)
    with Watch():
        ones = torch.ones(3)
        dist.all_reduce(ones, dist.ReduceOp.AVG)
        print(functional.all_reduce(ones, "sum", dist.group.WORLD).tolist())
        try:
            dist.all_reduce(ones, dist._make_nccl_premul_sum(2.0))
        except NotImplementedError as error:
            print(error)
    dist.destroy_process_group()
print(len(before))
"""
    )
    assert said.splitlines() == [
        "c10d.allreduce_.default 1 True",
        "waits True",
        "c10d.allreduce_.default 1 False",
        "waits True",
        "[1.0, 1.0, 1.0]",
        "the pretend card has no PREMUL_SUM; reduce by SUM and multiply the result.",
        "2",
    ]


def test_arguments_of_a_collective_have_names():
    """named_arguments"""
    operator = torch.ops.c10d._allgather_base_.default
    assert collectives.named_arguments(operator, ["out", "in", "group"]) == {
        "output_tensor": "out",
        "input_tensor": "in",
        "process_group": "group",
    }


_ALONE_BY_GLOO = """
import tempfile
import torch
import torch.distributed as dist
from snugfit.private_torch.gloo import letting_go

dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/meeting", rank=0, world_size=1)
with letting_go():
    parts, whole = torch.ones(4), torch.arange(4.0)
    dist.all_reduce(parts)
    for _ in range(50):
        later = torch.ones(2**18)
        work = dist.all_reduce(later, async_op=True)
        work.wait()
        assert later._use_count() == 1
    for name in ("reduce_scatter_tensor", "reduce_scatter_single"):
        scatter = getattr(dist, name, dist.reduce_scatter_tensor)
        out = torch.zeros(4)
        scatter(out, whole)
        assert torch.equal(out, whole)
        work = scatter(out, whole * 2, async_op=True)
        work.wait()
        assert torch.equal(out, whole * 2)
    assert parts._use_count() == 1 and torch._C._storage_Use_Count(parts.untyped_storage()._cdata) <= 2
dist.destroy_process_group()
print("well")
"""


def test_gloo_lets_go():
    """letting_go"""
    done = run_code(_ALONE_BY_GLOO)
    assert done.stdout.strip().endswith("well"), done.stderr
