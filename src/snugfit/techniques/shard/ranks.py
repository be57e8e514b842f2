"""The processes of a run, one for each GPU, as one of them sees them: what they tell each other, and what they add up."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from snugfit import private_torch
from snugfit.device_kinds import CPU, CUDA, SIMULATED
from snugfit.errors import InputError
from snugfit.private_torch.collectives import own_part
from snugfit.techniques import each_builds
from snugfit.techniques.shard import groups

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from snugfit.recipe import Recipe


def ranks_here() -> dict[str, int]:
    """Returns the workload's `gpus` and `nodes` as torch.distributed knows them; empty without processes."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return {}
    ranks = dist.get_world_size()
    gpus = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    return {"gpus": gpus, "nodes": ranks // gpus} if ranks % gpus == 0 else {"gpus": ranks}


def builds_here(recipe: Recipe) -> bool:
    """Returns whether this process needs a model with values: the first does, or each, where a technique looks at them."""
    return each_builds(recipe) or not ranks_here() or dist.get_rank() == 0


def check_ranks(ranks: int, device: torch.device) -> None:
    """Raises `InputError` unless the processes are as many as the workload says and are connected for this device."""
    there = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if ranks not in (1, there):
        raise InputError(
            f"gpus and nodes make {ranks} processes, and torch.distributed has {there}. Start the script with torchrun and "
            "call torch.distributed.init_process_group() first, or use `snugfit train --gpus N`, which does both."
        )
    if ranks > 1 and device.type == CUDA and "cuda:nccl" not in dist.get_backend_config():
        raise InputError(
            f"the processes were connected by {dist.get_backend_config()}, and cards need nccl. Call "
            "init_process_group('cpu:gloo,cuda:nccl')."
        )


_SENT = (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8)


class Ranks:
    """What one process knows of the others."""

    def __init__(self, device: torch.device, *, shard: int, tensor: int = 1) -> None:
        """Joins the processes that torch.distributed has; every process must call this.

        `shard`: how many of them share out the weights.
        `tensor`: how many beside each other take the same samples, each with its part of the layers.
        """
        self.count = dist.get_world_size()
        self.number = dist.get_rank()
        self.tensor, self.shard = tensor, shard
        self.sharers = self.count // tensor
        """How many share the batch."""
        self.sharer = self.number // tensor
        """Which of them this process is, or is a part of."""
        self.device = device
        with _real_numbers():
            meshes = groups.mesh_of(device, sharers=self.sharers, shard=shard, tensor=tensor)
            names = [name for name in meshes.mesh_dim_names or () if name != "tensor"]
            self.mesh = meshes[tuple(names)] if tensor > 1 else meshes
            self.layers: DeviceMesh | None = meshes["tensor"] if tensor > 1 else None
            """The processes that cut layers among them; None where nobody does."""
            self.alike: list[Any] = [meshes.get_group(name) for name in names] if tensor > 1 else [None]
            """Groups of those with the same part of the layers, one after the other: all where layers are not cut."""
        # Numbers that the host needs do not go by way of the device, which would have to be waited for.
        self.hosts: Any = groups.of_hosts() if device.type not in (CPU, SIMULATED) else None
        self.wish: Callable[[], int] = lambda: 0
        """Called at each exchange of numbers: what this process wants of all, such as a signal's number; 0: nothing."""
        self.wished = 0
        """The largest wish that all were told of: the same in every process."""
        self.cut: set[str] = set()
        """Parameters that processes beside each other have different parts of, by name."""
        self.seen_in_part: set[str] = set()
        """Parameters that each of them has whole, and uses on its part of a layer: their gradients are parts of a sum."""
        self._shards: Any = self.mesh.get_group("shard") if shard > 1 else None
        self._layers: Any = None if self.layers is None else self.layers.get_group()

    def agree(self, numbers: Sequence[float]) -> list[list[float]]:
        """Returns everybody's numbers, by process."""
        with _real_numbers():
            # The wish travels with every exchange, so that it costs no message of its own.
            mine = torch.tensor([*numbers, self.wish()], dtype=torch.float64, device="cpu")
            found = torch.empty(self.count * len(mine), dtype=torch.float64, device="cpu")
            gather = (
                getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
            )  # its name since torch 2.14
            gather(found, mine, group=self.hosts)
            told: list[list[float]] = found.view(self.count, len(mine)).tolist()
        self.wished = max(self.wished, *(int(one.pop()) for one in told))
        return told

    def agree_by_share(self, numbers: Sequence[float]) -> list[list[float]]:
        """Returns the numbers of all that share the batch; of those that take the same samples, the first's."""
        return self.agree(numbers)[:: self.tensor]

    def any_of(self, here: Sequence[bool]) -> list[bool]:
        """Returns, for each of several flags, whether it is set in any process."""
        with _real_numbers():
            flags = torch.tensor(here, dtype=torch.uint8, device="cpu")
            dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self.hosts)
            told: list[bool] = flags.bool().tolist()
        return told

    def tell(self, mine: Any) -> list[Any]:
        """Returns everybody's objects, by process; in a simulation only this one's."""
        if is_simulated():
            return [mine]
        told: list[Any] = [None] * self.count
        dist.all_gather_object(told, mine, group=self.hosts)
        return told

    def is_shared_out(self, weight: Tensor) -> bool:
        """Returns whether processes hold shares of a parameter, so that torch adds its gradients up."""
        return self._shards is not None and own_part(weight) is not weight

    def first_with_copies_of(self, number: int, *, shared_out: bool) -> int:
        """Returns the first process that holds the same part of a parameter as process `number`."""
        return number % (self.tensor * (self.shard if shared_out else 1))

    def total(self, value: Tensor) -> Tensor:
        """Returns the sum of a tensor over all that share the batch."""
        value = value.detach().clone()
        for group in self.alike:
            dist.all_reduce(value, group=group)
        return value

    def from_first(self, tensor: Tensor) -> None:
        """Puts the first process's values into a tensor of this process, on the device."""
        whole = tensor.detach()
        flat = whole.contiguous()  # with its own strides gloo would send what lies between, too
        # As bytes where gloo does not know the dtype.
        dist.broadcast(flat if flat.dtype in _SENT else flat.reshape(-1).view(torch.uint8), src=0)
        if flat is not whole:
            whole.copy_(flat)

    def norm(self, mine: Tensor, cut: Tensor | None = None, whole: Tensor | None = None) -> Tensor:
        """Returns the norm of what all processes hold together, from the norms of the parts that this one holds.

        `mine`: that of what is shared out, or whole in each process where nothing is.
        `cut`: that of the parts of layers that are cut; None where there are none.
        `whole`: that of what each process has all of beside what is shared out; None where there is nothing.
        """
        if self._shards is None and cut is None and whole is None:
            return mine
        # From the inside out: parts of layers are summed over the processes that cut them, then all over those that
        # share out; what each process has whole is added last, or it would count several times.
        squares = (mine * mine).to(self.device)  # a group of cards knows no tensors of the host
        if cut is not None:
            of_layers = (cut * cut).to(self.device)
            dist.all_reduce(of_layers, group=self._layers)
            squares = squares + of_layers
        if self._shards is not None:
            dist.all_reduce(squares, group=self._shards)
        if whole is not None:
            squares = squares + (whole * whole).to(self.device)
        return squares.sqrt().to(mine.device)

    def largest(self, value: Tensor) -> None:
        """Puts the largest value among the processes that share out or cut the weights in place of each one's."""
        for group in (self._shards, self._layers):
            if group is not None:
                dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group)

    def add_up_layers(self, value: Tensor) -> None:
        """Puts the sum over the processes that cut layers among them in place of each one's."""
        dist.all_reduce(value, group=self._layers)

    def mean(self, values: Sequence[Tensor]) -> None:
        """Puts the mean over all processes in place of tensors of one dtype and device."""
        flat = torch.cat([value.reshape(-1) for value in values])
        dist.all_reduce(flat)
        parts = torch.split(flat / self.count, [value.numel() for value in values])
        torch._foreach_copy_(list(values), [part.view_as(value) for part, value in zip(parts, values, strict=True)])


def is_simulated() -> bool:
    """Returns whether this process is simulated, so that the others do not exist."""
    return "fake" in dist.get_backend()


def _real_numbers() -> AbstractContextManager[Any]:
    """In a simulated process, what hosts exchange must still be real numbers: this process's own."""
    return private_torch.without_modes() if is_simulated() else nullcontext()
