"""A ledger of real storages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from snugfit import private_torch
from snugfit.device_kinds import CUDA
from snugfit.private_torch.func_wrappers import parts_inside
from snugfit.recorder.storage_ledger import StorageLedger
from snugfit.recording.trace_builder import TraceBuilder
from snugfit.techniques.batches import tensors_of

MADE_ELSEWHERE = "(made outside of watched code)"


class ProfileLedger(StorageLedger):
    """A ledger of real storages: knows memory that is not the allocator's, and which module a tensor belongs to."""

    def __init__(self, builder: TraceBuilder, on_other_thread: Callable[[int], None]) -> None:
        """Starts empty; `on_other_thread` gets the bytes of what another thread lets go of."""
        super().__init__(builder, "cpu")
        self._on_other_thread = on_other_thread
        self._thread = threading.get_ident()

    def move_to_cuda(self) -> None:
        """From now on the device is the GPU; everything so far is on the host."""
        self._device_type = CUDA
        self.builder.all_on_host()

    def _gone(self, ref: Any) -> None:
        super()._gone(ref)
        if ref.on_device and threading.get_ident() != self._thread:
            self._on_other_thread(ref.size)

    def see(self, tensor: torch.Tensor, **made: Any) -> None:
        """Records a new storage; memory of numpy, files and loader processes counts as host memory."""
        mapped = tensor.device.type == "cpu" and tensor not in self and not tensor.untyped_storage().resizable()
        with self.as_host() if mapped else nullcontext():
            super().see(tensor, **made)

    def claim_for(self, tensor: torch.Tensor, category: str, module: str) -> None:
        """Sets category and module of a tensor (empty: where it was made); an unseen one is recorded first."""
        for part in _parts(tensor):
            self.see(part, operator=MADE_ELSEWHERE, module=module, phase="build", stream=0)
            self.claim((part,), category, module)

    def claim_inputs(self, tensors: Iterable[torch.Tensor]) -> None:
        """Claims tensors given to a model as inputs, unless a forward pass made them."""
        for tensor in tensors:
            ref = self._alive.get(tensor.untyped_storage()._cdata)
            if ref is not None and not ref.claimed and ref.phase in ("build", "data"):
                self._set(ref, "inputs")


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a storage of its own: not lazy, not sparse, not a wrapper of others."""
    plain = type(tensor).__torch_dispatch__ is private_torch.PLAIN_DISPATCH
    return plain and not is_lazy(tensor) and tensor.layout is torch.strided


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns the tensors with a storage of their own that a tensor is made of: itself, or a sharded one's share."""
    return [part for part in parts_inside(tensor) if _is_plain(part)]


def plain_tensors(values: Any) -> list[torch.Tensor]:
    """Returns those with a storage of their own among all tensors in some values."""
    return [part for tensor in tensors_of(values) for part in _parts(tensor)]
