"""One process of many that do not exist: torch's fake process group, and what in torch looks at the others' shares."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import _disable_current_modes


def init_alone(ranks: int, number: int, device_type: str) -> None:
    """Makes this process one of `ranks` that do not exist, by torch's own fake process group."""
    from torch.testing._internal.distributed import fake_pg

    if device_type not in dist.Backend.backend_capability["fake"]:
        dist.Backend.backend_capability["fake"].append(device_type)
        dist.Backend.default_device_backend_map.setdefault(device_type, "fake")
    dist.init_process_group("fake", rank=number, world_size=ranks, store=fake_pg.FakeStore())


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


def shares_by_storage() -> tuple[Any, str, Any]:
    """Returns replacements for how torch recognises its own shares by address.

    Fake tensors have no addresses, so each share of odd size would be padded and copied once more.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    pad_again = FSDPParam.reset_sharded_param

    def reset(self: Any) -> None:
        weight = getattr(self._module_info.module, self._module_info.param_name)
        shares = (self._sharded_param_data, weight._local_tensor)
        if weight is not self.sharded_param or len({one.untyped_storage()._cdata for one in shares}) > 1:
            pad_again(self)  # type: ignore[no-untyped-call]

    return (FSDPParam, "reset_sharded_param", reset)
