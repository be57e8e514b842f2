"""The groups of processes that trainers use: made once for each way to stand, however many trainers come.

A group is there until the processes leave each other, on cards with memory of NCCL's own. And what torch works out for
tensors that processes hold together holds good for one set of groups: with new ones all of it is worked out again, which is
most of the time of a small model's first step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from snugfit.private_torch import collectives

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class _Made:
    """The groups that were made among the processes which are connected now."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.meshes: dict[tuple[str, int, int, int], DeviceMesh] = {}
        self.hosts: Any = None


_made = _Made(None)


def _here() -> _Made:
    global _made
    if _made.world is not dist.group.WORLD:  # they have left each other since, and met anew
        _made = _Made(dist.group.WORLD)
    return _made


def mesh_of(device: torch.device, *, sharers: int, shard: int, tensor: int) -> DeviceMesh:
    """Returns how the processes are arranged; every one must call this when an arrangement is new.

    `sharers`: how many share the batch, or are groups that do.
    `tensor`: how many beside each other cut layers among them.
    """
    known, key = _here().meshes, (device.type, sharers, shard, tensor)
    if key not in known:
        if tensor > 1:  # groups of processes that stood together before may have had the same names, or others
            collectives.forget_layouts()
        known[key] = _mesh(device, sharers, shard, tensor)
    return known[key]


def of_hosts() -> Any:
    """Returns the group through which hosts of cards exchange numbers; the first time, every process must call this."""
    made = _here()
    if made.hosts is None:
        made.hosts = dist.new_group(backend="gloo")
    return made.hosts


def _mesh(device: torch.device, sharers: int, shard: int, tensor: int) -> DeviceMesh:
    from torch.distributed.device_mesh import init_device_mesh

    if shard in (1, sharers):
        sizes = {"replicate" if shard == 1 else "shard": sharers}
    else:
        sizes = {"replicate": sharers // shard, "shard": shard}
    if tensor > 1:
        sizes["tensor"] = tensor
    return init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
