"""Records a whole script: what it reads of its data keeps its values, and everything else is fake.

A script decodes images, counts labels and draws positions before its model sees anything; all of that asks for values. So
an operator on real tensors of the host runs for real, and what arrays and files give is real. What makes numbers out of
nothing is fake, as weights are, but for small whole ones (positions, orders).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from snugfit.attributes import Change
from snugfit.errors import CannotSimulateError
from snugfit.operators.operator_truth import new_tensors
from snugfit.private_torch.fake_tensors import FAKES, FakeTensor
from snugfit.private_torch.library_classes import of_library
from snugfit.private_torch.sparse_layouts import SparseFake, is_coalesced, parts_of, sparse_fake
from snugfit.recorder.recorder import Recorder
from snugfit.recorder.seen_modules import SeenModules
from snugfit.techniques.batches import tensors_in
from snugfit.values.known_values import known_value, random_value

_aten = torch.ops.aten
_DRAW = {_aten.arange, _aten.randperm, _aten.randint}
"""Operators that make whole numbers out of nothing where no other dtype is said."""
_EMPTY = {_aten.empty, _aten.empty_strided, _aten.zeros, _aten.ones, _aten.full}
_INDEXING = {_aten.index, _aten.index_put, _aten.index_put_}
_MOST_NUMBERS = 2**22
"""Larger ones are fake: no script reads them one by one."""
_CPU, _FIRST_CPU = torch.device("cpu"), torch.device("cpu", 0)
"""One device by two names, which torch takes for one in real tensors only."""
_REAL = (torch.Tensor, torch.nn.Parameter)
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


class ScriptRecorder(Recorder):  # type: ignore[no-untyped-call]
    """A recorder that lets data be data, and meets models that nobody introduced."""

    names = SeenModules
    refused = ""
    """What could not be simulated last, which a script may have caught."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operator on data for real, and records every other one."""
        kwargs = kwargs or {}
        if kwargs.get("device") == _FIRST_CPU:
            kwargs = {**kwargs, "device": _CPU}
        given = tensors_in((*args, *kwargs.values()))
        if func is _aten.is_pinned.default:  # asked by code in C++, as that of DistributedDataParallel
            return given[0].untyped_storage() in self.locked
        into_data = func._schema.is_mutable and bool(args) and _is_data(args[0])
        if into_data or "sparse" in func._opname or any(map(_is_real_sparse, given)):
            args = _with_values(args, _known_or_drawn if into_data else known_value)
            given = tensors_in((*args, *kwargs.values()))
        if not _stays_real(func, args, kwargs, given):
            if any(map(_is_real_sparse, given)):
                args, types = self._sparse_as_fake(args), (*types, SparseFake)
            elif any(map(_is_part_of_sparse, given)):
                args = _as_themselves(args)
            try:
                return super().__torch_dispatch__(func, types, _by_positions(func, args), kwargs)
            except CannotSimulateError as error:
                self.refused = str(error)  # not itself: its traceback would keep tensors
                raise
        known = {part.untyped_storage()._cdata for tensor in given for part in parts_of(tensor)}
        # No card of this machine has memory to lock pages for.
        result = func(*args, **{name: value for name, value in kwargs.items() if name != "pin_memory"})
        module = self._moment.module()
        made = [part for tensor in tensors_in((result,)) for part in parts_of(tensor)]
        for tensor in new_tensors(made, known):
            if kwargs.get("pin_memory"):
                self.locked.add(tensor.untyped_storage())
            self._notes.storage(tensor, module, str(func))
        return result

    def _sparse_as_fake(self, value: Any) -> Any:
        """Returns arguments with sparse data as fake matrices of its parts, for an operator that does not stay real."""
        if isinstance(value, list | tuple):
            return type(value)(map(self._sparse_as_fake, value))
        if not isinstance(value, torch.Tensor) or not _is_real_sparse(value):
            return value
        known = is_coalesced(value)
        return sparse_fake(self._factory.mode, parts_of(value), value.shape, value.layout, coalesced=known)


def weights() -> list[Change]:
    """Returns the replacements that make weights of what files and arrays hold fake, as all other weights are.

    With values a model on cpu would compute for real, and its weights, mapped from a file, would count nothing.
    """
    original = torch.nn.Parameter.__new__
    held: Any = torch.Tensor.data

    def put(weight: torch.Tensor, data: torch.Tensor) -> None:
        held.__set__(weight, _without_values(data))

    def made(cls: type, data: Any = None, requires_grad: bool = True) -> Any:
        data = _without_values(data)
        if type(data) in FAKES and type(data) is not FakeTensor:  # already a weight, of a library's class
            return of_library(type(data), data, requires_grad)
        return original(cls, data, requires_grad)

    def of_its_class(cls: type, first: Any, *args: Any, requires_grad: bool = True, **kwargs: Any) -> Any:
        """Libraries make a weight anew by `type(weight)(...)`, and that of a fake one is `FakeTensor`."""
        if isinstance(first, torch.Tensor):
            return torch.nn.Parameter(first, requires_grad)
        return fake(cls, first, *args, **kwargs)

    fake = FakeTensor.__new__
    data = property(held.__get__, put)
    return [(torch.nn.Parameter, "__new__", made), (FakeTensor, "__new__", of_its_class), (FakeTensor, "data", data)]


def _without_values(data: Any) -> Any:
    """Returns a fake tensor in the place of real numbers that become a weight; everything else as it is."""
    if type(data) is torch.Tensor and _is_data(data) and data.is_floating_point():
        return torch.empty(data.shape, dtype=data.dtype)
    return data


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Address:
    """Where a fake tensor would lie, to be compared by what looks for shared weights; no number that a kernel could read."""

    storage: int
    """A number of its storage."""
    offset: int
    """Bytes before it."""

    def __add__(self, count: int) -> Address:  # where a tensor ends, as savers of weights ask
        return Address(self.storage, self.offset + count)


def addresses() -> list[Change]:
    """Returns the replacements that tell fake tensors that share memory from others."""
    of_tensor, of_storage = torch.Tensor.data_ptr, torch.UntypedStorage.data_ptr

    def address(tensor: torch.Tensor) -> Any:
        if type(tensor) not in FAKES:
            return of_tensor(tensor)
        return Address(tensor.untyped_storage()._cdata, int(tensor.storage_offset()) * tensor.itemsize)

    def start(storage: torch.UntypedStorage) -> Any:
        try:
            return of_storage(storage)
        except RuntimeError:  # that of a fake tensor
            return Address(storage._cdata, 0)

    return [(torch.Tensor, "data_ptr", address), (torch.UntypedStorage, "data_ptr", start)]


def _by_positions(func: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Returns the arguments of an operator with the positions in place of masks of data, whose values are there."""
    if func.overloadpacket not in _INDEXING or not any(map(_is_real_mask, args[1])):
        return args
    places: list[Any] = []
    for index in args[1]:
        places += index.nonzero().unbind(1) if _is_real_mask(index) else [index]
    return (args[0], places, *args[2:])


def _is_real_sparse(tensor: torch.Tensor) -> bool:
    return type(tensor) in _REAL and tensor.layout in _SPARSE


def _is_part_of_sparse(tensor: torch.Tensor) -> bool:
    return type(tensor) in _REAL and tensor._base is not None and tensor._base.layout in _SPARSE


def _as_themselves(given: Any) -> Any:
    """Returns arguments with places and values of sparse data as tensors, not as views of it: torch makes no fake view."""
    if isinstance(given, list | tuple):
        return type(given)(map(_as_themselves, given))
    return given.data if isinstance(given, torch.Tensor) and _is_part_of_sparse(given) else given


def _with_values(given: Any, values: Callable[[torch.Tensor], torch.Tensor | None]) -> Any:
    """Returns arguments with the values of fake tensors of the host in their place, where these are known.

    Sparse data is made with ones and `eye`; a batch of data is filled with ids that code has made.
    """
    if isinstance(given, list | tuple):
        return type(given)(_with_values(one, values) for one in given)
    found = values(given) if type(given) in FAKES and given.device.type == "cpu" else None
    return given if found is None else found


def _known_or_drawn(tensor: torch.Tensor) -> torch.Tensor | None:
    drawn = random_value(tensor)
    return known_value(tensor) if drawn is None else drawn("drawn")


def _is_data(tensor: Any) -> bool:
    return type(tensor) in _REAL and tensor.device.type == "cpu"


def _is_real_mask(index: Any) -> bool:
    return _is_data(index) and index.dtype is torch.bool


def _stays_real(func: Any, args: Sequence[Any], kwargs: dict[str, Any], given: Sequence[torch.Tensor]) -> bool:
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != "cpu":
        return False
    if func.namespace != "aten":
        return False
    if given:
        return all(map(_is_data, given))
    dtype = kwargs.get("dtype")
    if func.overloadpacket is _aten.full and dtype is None and isinstance(args[1], int):
        dtype = torch.bool if isinstance(args[1], bool) else torch.int64
    if dtype is not None and (dtype.is_floating_point or dtype.is_complex):
        return False
    if func.overloadpacket in _EMPTY:
        return dtype is not None and math.prod(args[0]) <= _MOST_NUMBERS
    if func.overloadpacket not in _DRAW:
        return False
    shapes = [part for part in args if isinstance(part, list | tuple)]
    if shapes:
        return math.prod(shapes[0]) <= _MOST_NUMBERS
    return all(isinstance(number, int) and abs(number) <= _MOST_NUMBERS for number in args)
