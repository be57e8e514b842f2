"""The life of every storage: when it is born, when it dies, how large it is, and what it turned out to be.

A weak reference on the storage object tells its death at once, also when autograd drops a saved tensor in C++: torch keeps
the Python object of a storage alive exactly as long as the storage. Views share it and count once.

What a storage is shows only later. A storage that is claimed (a parameter, a gradient, optimizer state, the batch) is that;
of the rest, what a forward pass made and a backward pass saw is an activation, and everything else is temporary.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from snugfit.attributes import attributes_set
from snugfit.private_torch.func_wrappers import parts_inside
from snugfit.recording.trace_builder import TraceBuilder
from snugfit.techniques.batches import tensors_of

_NOT_FORWARD = ("build", "load", "optimizer")


class _StorageRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that knows which storage it was."""

    __slots__ = ("claimed", "epoch", "forward", "index", "key", "on_device", "phase", "size", "value")
    index: int
    key: int
    size: int
    on_device: bool
    forward: bool
    epoch: int
    claimed: bool
    phase: str
    value: float | None


class StorageLedger:
    """Follows storages from their first tensor to their death and writes both into a trace."""

    def __init__(self, builder: TraceBuilder, device_type: str) -> None:
        """Starts empty.

        Args:
            builder: Takes the events.
            device_type: Device type whose storages are on the device; those of all others are on the host.
        """
        self.builder = builder
        self.allocated_bytes = 0
        self.peak_bytes = 0
        self.made = 0
        """Number of storages so far."""
        self.epoch = 0
        """Number of times that backward was entered so far."""
        self.forward = True
        """Whether what is made now is made by a forward pass."""
        self.in_host_pool = False
        """Whether everything that is made counts as host memory."""
        self._device_type = device_type
        self._alive: dict[int, _StorageRef] = {}
        self._left_by_backward: list[_StorageRef] = []
        """Made by backward since `claim_left_by_backward` last looked."""

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage is known."""
        return tensor.untyped_storage()._cdata in self._alive

    def number(self, tensor: torch.Tensor) -> int | None:
        """Returns the number of a tensor's storage in the trace; None where it is not known."""
        ref = self._alive.get(tensor.untyped_storage()._cdata)
        return None if ref is None else ref.index

    def see(self, tensor: torch.Tensor, *, operator: str, module: str, phase: str, stream: int, line: str = "") -> None:
        """Takes down the birth of a tensor's storage, unless it is known.

        Args:
            tensor: A tensor that an operator returned.
            operator: The operator.
            module: Dotted path of the module that runs.
            phase: The phase.
            stream: The current stream.
            line: `file:line` of the code that made it; empty: nobody's.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        device = tensor.device.type
        if key in self._alive or device == "meta":
            return
        size = storage.nbytes()
        on_device = device == self._device_type and not self.in_host_pool
        number = self.builder.alloc(  # first of all: a card with an end may refuse
            size,
            place="device" if on_device else "host",
            category="temporaries",
            module=module,
            operator=operator,
            phase=phase,
            stream=stream,
            line=line,
        )
        self.made = number + 1
        ref = _StorageRef(storage, self._gone)
        ref.key, ref.index, ref.size, ref.on_device = key, number, size, on_device
        ref.forward = self.forward and phase not in _NOT_FORWARD
        ref.epoch, ref.phase, ref.claimed, ref.value = self.epoch, phase, False, None
        self._alive[key] = ref
        if phase == "backward" and not ref.forward:
            self._left_by_backward.append(ref)
        if ref.on_device:
            self.grow(ref.size)
        if phase == "data":
            self._set(ref, "inputs")

    def grow(self, size_bytes: int) -> None:
        """Counts bytes on the device."""
        self.allocated_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)

    def claim(self, tensors: Iterable[torch.Tensor | None], category: str, module: str = "") -> None:
        """Says what the storages of tensors are.

        Args:
            tensors: Tensors; None and those not known are passed over.
            category: One of `CATEGORIES`.
            module: Dotted path of the module they belong to; empty: the one in which they were made.
        """
        for ref in self._known(tensors):
            self._set(ref, category)
            if module:
                self.builder.set_module(ref.index, module)

    def claim_inputs(self, given: Any) -> None:
        """Says that what a model is given are inputs, but for what modules have made."""
        for ref in self._known(tensors_of(given)):
            if not ref.claimed and not self.builder.module(ref.index):
                self._set(ref, "inputs")

    def category(self, tensor: torch.Tensor) -> str | None:
        """Returns what a tensor was claimed to be; None where it was not or is not known."""
        ref = self._alive.get(tensor.untyped_storage()._cdata)
        return self.builder.category(ref.index) if ref is not None and ref.claimed else None

    def module(self, tensor: torch.Tensor) -> str:
        """Returns the module that a tensor was claimed for, such as a weight's; empty where it was not or is not known."""
        ref = self._alive.get(tensor.untyped_storage()._cdata)
        return self.builder.module(ref.index) if ref is not None and ref.claimed else ""

    def largest_of(self, numbers: range) -> tuple[int, str, str]:
        """Returns bytes, operator and line of the largest of some storages that is alive on the device, if one is."""
        found = [ref for ref in self._alive.values() if ref.on_device and ref.index in numbers]
        largest = max(found, key=lambda ref: ref.size, default=None)
        return (0, "", "") if largest is None else (largest.size, *self.builder.origin(largest.index))

    def set_value(self, tensor: torch.Tensor, value: float) -> None:
        """Remembers what a tensor of one element would hold in a run where all goes well.

        Args:
            tensor: The tensor.
            value: Its value.
        """
        ref = self._alive.get(tensor.untyped_storage()._cdata)
        if ref is not None:
            ref.value = value

    def value(self, tensor: torch.Tensor) -> float | None:
        """Returns what `set_value` was told, None where it was not."""
        ref = self._alive.get(tensor.untyped_storage()._cdata)
        return None if ref is None else ref.value

    def claim_left_by_backward(self) -> None:
        """What backward made and the optimizer finds is a gradient, even where no parameter holds it."""
        for ref in self._left_by_backward:
            if not ref.claimed and ref.epoch == self.epoch and self._alive.get(ref.key) is ref:
                self._set(ref, "gradients")
        self._left_by_backward.clear()

    def claim_left_by_optimizer(self) -> None:
        """What an update made and leaves behind is the optimizer's state, even where no torch optimizer keeps it."""
        for ref in self._alive.values():
            if not ref.claimed and ref.phase == "optimizer":
                self._set(ref, "optimizer_state")

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Takes down that a known storage may have another size now.

        Args:
            storage: The storage.
        """
        ref = self._alive.get(storage._cdata)
        if ref is not None and ref.size != storage.nbytes():
            if ref.on_device:
                self.grow(storage.nbytes() - ref.size)
            ref.size = storage.nbytes()
            self.builder.resize(ref.index, ref.size)

    def decide_all(self) -> None:
        """Decides what is still alive, at the end of a recording."""
        for ref in self._alive.values():
            self._decide(ref)

    def as_host(self) -> AbstractContextManager[None]:
        """Returns a context that counts all that is made inside as host memory, also in a run on cpu."""
        return attributes_set([self], in_host_pool=True)

    def _known(self, tensors: Iterable[torch.Tensor | None]) -> Iterator[_StorageRef]:
        """The storages of tensors that are alive and known, those inside wrappers too."""
        for part in (part for tensor in tensors if tensor is not None for part in parts_inside(tensor)):
            ref = self._alive.get(part.untyped_storage()._cdata)
            if ref is not None:
                yield ref

    def _set(self, ref: _StorageRef, category: str) -> None:
        ref.claimed = True
        self.builder.set_category(ref.index, category)

    def _decide(self, ref: _StorageRef) -> None:
        if not ref.claimed and ref.forward and self.epoch > ref.epoch:
            self.builder.set_category(ref.index, "activations")

    def _gone(self, ref: _StorageRef) -> None:
        self._alive.pop(ref.key, None)
        self._decide(ref)
        if ref.on_device:
            self.allocated_bytes -= ref.size
        self.builder.free(ref.index)
