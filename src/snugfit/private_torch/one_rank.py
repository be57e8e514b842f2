"""One process of many that do not exist: torch's fake process group, and what in torch looks at the others' shares."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import _disable_current_modes

from snugfit.private_torch.collectives import own_part

_init = dist.init_process_group


def init_alone(ranks: int, number: int, device_type: str) -> None:
    """Makes this process one of `ranks` that do not exist, by torch's own fake process group."""
    from torch.testing._internal.distributed import fake_pg

    if device_type not in dist.Backend.backend_capability["fake"]:
        dist.Backend.backend_capability["fake"].append(device_type)
        dist.Backend.default_device_backend_map.setdefault(device_type, "fake")
    _init("fake", rank=number, world_size=ranks, store=fake_pg.FakeStore())


def groups_by(init: Callable[..., None]) -> list[tuple[Any, str, Any]]:
    """Returns the replacements that have a script's group of all processes made by `init`.

    Groups of some of them are of the same backend, whatever is asked for.
    """
    from torch.distributed import device_mesh

    new = distributed_c10d.new_group

    def some(
        ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, *others: Any, **named: Any
    ) -> Any:
        named.pop("device_id", None)
        return new(ranks, timeout, None, None, *others, **named)

    def backend_for(device: Any) -> str:
        return "gloo" if torch.device(device).type == "cpu" else "nccl"

    places = (dist, distributed_c10d, device_mesh)
    found = {"init_process_group": init, "new_group": some, "get_default_backend_for_device": backend_for}
    return [(place, name, value) for place in places for name, value in found.items() if hasattr(place, name)]


def unverified() -> list[tuple[Any, str, Any]]:
    """Returns the replacement for DDP's look at whether all processes have the same model, which reads numbers."""
    from torch.nn.parallel import distributed

    return [(distributed, "_verify_param_shape_across_processes", lambda *_: True)]


def meshes_with_numbers() -> list[tuple[Any, str, Any]]:
    """Returns replacements for methods of meshes that would read process numbers from tensors."""

    def outside(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def called(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                return method(*args, **kwargs)

        return called

    names = ("__init__", "__getitem__", "_flatten", "_unflatten", "get_group", "get_local_rank", "get_coordinate")
    found = {name: vars(DeviceMesh).get(name) for name in names}
    return [(DeviceMesh, name, outside(method)) for name, method in found.items() if method is not None]


class OwnChunk:
    """The pieces of a tensor, like `torch.chunk`'s for all processes, each cut only when it is asked for."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._dim = tensor, dim
        self._size = -(-tensor.size(dim) // num_chunks)

    def __getitem__(self, number: int) -> torch.Tensor:
        """Returns the piece of one process; an empty tensor where none is left for it."""
        start = number * self._size
        left = self._tensor.size(self._dim) - start
        if left <= 0 and number:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(self._size, left))


def only_own_chunks() -> tuple[Any, str, Any]:
    """Returns replacements for torch's cutting of parameters for all processes, when one needs only its own."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    return (_fsdp_param, "_chunk_with_empty", OwnChunk)


def shares_by_storage() -> list[tuple[Any, str, Any]]:
    """Returns replacements for how torch recognises its own shares by address.

    Fake tensors have no addresses, so `fully_shard` would pad and copy each share of odd size once more, and the older
    `FullyShardedDataParallel` would fail.
    """
    from torch.distributed.fsdp import _flat_param
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    pad_again = FSDPParam.reset_sharded_param

    def reset(self: Any) -> None:
        weight = getattr(self._module_info.module, self._module_info.param_name)
        shares = (self._sharded_param_data, weight._local_tensor)
        if weight is not self.sharded_param or len({one.untyped_storage()._cdata for one in shares}) > 1:
            pad_again(self)  # type: ignore[no-untyped-call]

    def same_storage(a: Any, b: Any) -> bool:
        return bool(own_part(a).untyped_storage()._cdata == own_part(b).untyped_storage()._cdata)

    return [(FSDPParam, "reset_sharded_param", reset), (_flat_param, "_same_storage", same_storage)]


def all_parameters(model: torch.nn.Module) -> int:
    """Returns how many parameters a model has, with those that other processes hold of FullyShardedDataParallel's rows."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    wrapped = [] if fsdp is None else fsdp.FullyShardedDataParallel.fsdp_modules(model)
    rows = [one._handle.flat_param for one in wrapped if one._handle is not None]
    among = {id(part) for row in rows for part in (row, *(row._params or ()))}
    others = sum(one.numel() for one in model.parameters() if id(one) not in among)
    return others + sum(sum(row._numels) for row in rows)
