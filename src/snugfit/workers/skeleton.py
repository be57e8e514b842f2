"""Sends models and batches to another process without their values: only shapes, dtypes and structure travel.

Anything that cloudpickle takes can be sent: modules, lambdas, closures, classes of a notebook. Every tensor in it becomes a
meta tensor on the way, with its dtype, strides and `requires_grad`; tensors that share a storage share one again, so tied
weights stay tied. Small host tensors that are no parameters of a module keep their values, because Python code may read
them (an index table, a step count).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence

from snugfit import private_torch
from snugfit.private_torch import sparse_layouts
from snugfit.workers import odd_objects
from snugfit.workers.object_paths import innermost, paths_of

REAL_ELEMENTS = 1024
_storages: dict[int, torch.UntypedStorage] = {}
_arrived: list[torch.Tensor] = []


def dumps(value: Any, unread: Sequence[Any] = ()) -> bytes:
    """Returns anything as bytes for `loads`, its tensors without values; raises what pickling raises.

    `unread`: objects that cannot be read back, although they can be pickled.
    """
    try:
        return _dumps(value, (), None) if not unread else _dumps(value, unread, _paths(value))
    except Exception as error:
        try:
            return _dumps(value, unread, _paths(value))
        except Exception:
            raise error from None  # the first one is about the user's object


def not_read(value: Any, known: Sequence[Any] = ()) -> tuple[str, Any]:
    """Returns the innermost object that cannot be sent and read back, and where it is."""

    def fails(one: Any) -> bool:
        try:
            loads(dumps(one, known))
        except ImportError:  # there is another way for modules that are not found
            return False
        except Exception:
            return True
        return False

    return innermost(value, fails)


def _paths(value: Any) -> dict[int, str]:
    return {id(one): path for path, one in paths_of(value)}


def _dumps(value: Any, unread: Sequence[Any], paths: Mapping[int, str] | None) -> bytes:
    """Pickles; with stand-ins where paths are given."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, torch.Tensor):
                return _reduce(obj)
            if isinstance(obj, torch.Generator):
                return torch.Generator, ()
            if isinstance(obj, PackedSequence):
                return _packed, (obj.data, obj.batch_sizes.tolist(), obj.sorted_indices, obj.unsorted_indices)
            reduced = odd_objects.reduce(obj)
            if reduced is None and paths is not None:
                reduced = odd_objects.stand_in(obj, paths, always=any(obj is one for one in unread))
            return super().reducer_override(obj) if reduced is None else reduced

    buffer = io.BytesIO()
    Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def loads(data: bytes) -> Any:
    """Returns what `dumps` sent, with meta tensors in place of tensors."""
    _storages.clear()
    _arrived.clear()
    try:
        return pickle.loads(data)
    finally:
        _storages.clear()


def arrived() -> tuple[torch.Tensor, ...]:
    """Returns all tensors of the last `loads`, wherever they are: model, batch, closure, attribute."""
    return tuple(_arrived)


def _reduce(tensor: torch.Tensor) -> Any:
    if is_lazy(tensor):
        return private_torch.lazy_parameter, (type(tensor), tensor.dtype, tensor.requires_grad)
    parameter = isinstance(tensor, torch.nn.Parameter)
    if (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not parameter
        and tensor.numel() <= REAL_ELEMENTS
        and not tensor.requires_grad
        and (tensor.dim() == 0 or not tensor.is_floating_point())
        and type(tensor) is torch.Tensor
    ):
        # Python code may read such a tensor (a step count, a table of indices), so its values travel.
        return _real, (tensor.tolist(), tensor.dtype)
    how = tensor.dtype, tensor.requires_grad, parameter
    if tensor.layout is not torch.strided:
        parts = [(tuple(part.shape), part.dtype) for part in sparse_layouts.parts_of(tensor)]
        if parts:
            return _sparse, (parts, tuple(tensor.shape), tensor.layout, sparse_layouts.is_coalesced(tensor))
        return _meta, (how, (tuple(tensor.shape),), None)
    storage = tensor.untyped_storage()
    layout = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    return _meta, (how, layout, storage._cdata, storage.nbytes())


def _real(values: Any, dtype: torch.dtype) -> torch.Tensor:
    made = torch.tensor(values, dtype=dtype)
    _arrived.append(made)
    return made


def _packed(data: torch.Tensor, batch_sizes: list[int], *order: torch.Tensor | None) -> PackedSequence:
    """Keeps the lengths of packed sequences, which the host knows however long they are."""
    return PackedSequence(data, torch.tensor(batch_sizes, dtype=torch.int64), *order)


def _sparse(
    parts: list[tuple[tuple[int, ...], torch.dtype]], shape: tuple[int, ...], layout: torch.layout, coalesced: bool
) -> torch.Tensor:
    held = [torch.empty(size, dtype=dtype, device="meta") for size, dtype in parts]
    made = sparse_layouts.of_parts(held, shape, layout, coalesced)
    _arrived.append(made)
    return made


def _meta(
    how: tuple[torch.dtype, bool, bool], layout: tuple[Any, ...], key: int | None = None, size_bytes: int = 0
) -> torch.Tensor:
    dtype, requires_grad, parameter = how
    if key is None:
        tensor = torch.empty(*layout, dtype=dtype, device="meta")
    else:
        shape, stride, offset = layout
        # Tensors that shared a storage share one again: tied weights stay tied.
        storage = _storages.get(key)
        if storage is None:
            storage = _storages[key] = torch.UntypedStorage(size_bytes, device="meta")  # type: ignore[no-untyped-call]
        tensor = torch.empty(0, dtype=dtype, device="meta")
        tensor.set_(storage, offset, shape, stride)
    result = torch.nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)
    _arrived.append(result)
    return result
