"""Saved tensors that wait in host memory for their backward."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from snugfit.private_torch.collectives import own_part, taken_apart
from snugfit.techniques.base import ModelTechnique, Setup, WrappedForward
from snugfit.techniques.blocks import chosen_blocks
from snugfit.techniques.calls import Calls

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

MIN_BYTES = 1024
"""Smaller tensors are not worth a copy."""
DEPTH = 3
"""Tensors on the device that may wait for their copy to the host."""


class ActivationOffload(ModelTechnique):
    """Moves saved tensors to the host pool and back, by saved-tensor hooks."""

    field = "offload_activations"
    stage = "saved tensors"  # before checkpointing, which then surrounds it: recomputed tensors never move
    wraps = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._model: nn.Module | None = None
        self._calls = Calls(setup, self.field)
        self._staying: set[int] = set()
        self._leaving: deque[tuple[Tensor, Any]] = deque()
        self._stashed: dict[tuple[Any, ...], weakref.ref[_Stashed]] = {}
        self._last: Callable[[], _Stashed | None] = _nothing

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a wrapped model takes nothing along of a pass that is under way."""
        return {**vars(self), "_leaving": deque(), "_stashed": {}, "_last": _nothing}

    @classmethod
    def wanted(cls, recipe: Recipe) -> bool:
        """Returns whether activations move; `checkpoints` is left to the checkpointing technique."""
        return recipe.offload_activations not in ("none", "checkpoints")

    def change(self, model: nn.Module) -> None:
        """Wraps the forward methods of the chosen blocks."""
        self.watch(model)
        choice = self.setup.recipe.offload_activations
        if choice != "all":
            for name, module in chosen_blocks(model, choice, field=self.field).items():
                around = _SavedOnHost(self)
                module.forward = WrappedForward(module, around)
                self._calls.watch(name, module, around)

    def watch(self, model: nn.Module) -> None:
        """Remembers the model whose weights stay on the device."""
        self._model = model

    @contextmanager
    def around_training_forward(self) -> Iterator[None]:
        """Starts a new pass; with `all`, every saved tensor of it goes to the host."""
        self._calls.begin()
        with self.new_pass():
            if self.setup.recipe.offload_activations == "all":
                with self.saving():
                    yield
            else:
                yield

    def around_step(self) -> AbstractContextManager[Any]:
        """Says at the end of the first step if the model has called none of the chosen blocks."""
        return self._calls.of_step()

    @contextmanager
    def new_pass(self) -> Iterator[None]:
        """Context of a forward pass; at its end every tensor whose copy was started has left the device."""
        assert self._model is not None
        own = map(own_part, chain(self._model.parameters(), self._model.buffers()))
        self._staying = {tensor.untyped_storage()._cdata for tensor in own}
        self._stashed.clear()
        self._last = _nothing
        try:
            yield
        finally:
            while self._leaving:
                self._let_go()

    def saving(self) -> AbstractContextManager[Any]:
        """Returns the context in which tensors saved for backward go to the host."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    def _pack(self, tensor: Tensor) -> Any:
        part, again = taken_apart(tensor)
        packed = self._packed(part)
        if packed is part:
            return _Stayed(tensor)
        return packed if part is tensor else (packed, again)

    def _packed(self, tensor: Tensor) -> Any:
        if not self._moves(tensor):
            return tensor
        storage = tensor.untyped_storage()
        # A tensor that was written into since it was saved is another one (`_version`). The address of a storage may
        # come back after it has died: `source.expired()` tells.
        view = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg())
        key = (storage._cdata, *view, tensor._version)
        known = self._stashed.get(key, _nothing)()
        if known is not None and not known.source.expired():  # type: ignore[no-untyped-call]
            return known
        stashed = _Stashed(self, self._last, tensor)
        self._last = self._stashed[key] = weakref.ref(stashed)
        copies = self.setup.copies
        with copies.copying(after=copies.compute_mark()):
            stashed.host.copy_(tensor.detach(), non_blocking=True)
        mark = copies.copy_mark()
        if mark is not None:
            self._leaving.append((tensor.detach(), mark))
            if len(self._leaving) > DEPTH:
                self._let_go()
        return stashed

    def _moves(self, tensor: Tensor) -> bool:
        if tensor.layout != torch.strided or tensor.device.type != self.setup.device.type or tensor.nbytes < MIN_BYTES:
            return False
        storage = tensor.untyped_storage()
        return storage.nbytes() >= tensor.nbytes and storage._cdata not in self._staying  # expanded views would grow

    def _let_go(self) -> None:
        """Frees the oldest tensor that left. Compute queued after this waits for its copy, so its memory can be reused."""
        _, mark = self._leaving.popleft()
        self.setup.copies.compute_waits_for(mark)

    def fetch(self, stashed: _Stashed) -> Tensor:
        """Returns a stashed tensor on the device, in the strides it was saved with, and starts the copy of the next one."""
        tensor = stashed.take()
        before = stashed.before()
        if before is not None:
            before.start()
        return tensor


class _SavedOnHost:
    """Runs a block's forward method so that what it saves goes to the host."""

    def __init__(self, offload: ActivationOffload) -> None:
        self._offload = offload
        self.called = False

    def __call__(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs the forward method."""
        self.called = True
        with self._offload.saving():
            return forward(*args, **kwargs)


class _Stashed:
    """One saved tensor in the host pool."""

    __slots__ = ("__weakref__", "_arriving", "_offload", "_present", "before", "host", "layout", "source")

    def __init__(self, offload: ActivationOffload, before: Callable[[], _Stashed | None], tensor: Tensor) -> None:
        self._arriving: tuple[Tensor, Any] | None = None  # first of all: `__del__` looks at it whatever happens below
        self._offload = offload
        self.before = before  # of the same pass: several may wait for their backward at a time
        # tells the storage from a later one at the same address
        self.source = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self.layout = (tensor.shape, _dense_strides(tensor), tensor.dtype, tensor.device)
        self.host = offload.setup.pool.empty(tensor.shape, tensor.dtype, strides=self.layout[1])
        self._present: Callable[[], Tensor | None] = _nothing

    def start(self) -> None:
        """Starts the copy to the device, unless it is under way or there."""
        if self._arriving is not None or self._present() is not None:
            return
        copies = self._offload.setup.copies
        shape, strides, dtype, device = self.layout
        # Allocated while compute is the current stream, so that the peak is a matter of order and not of timing; the
        # copy then waits for compute that may still use the same block.
        tensor = torch.empty_strided(shape, strides, dtype=dtype, device=device)
        with copies.copying(after=copies.compute_mark()):
            tensor.copy_(self.host, non_blocking=True)
        self._arriving = (tensor, copies.copy_mark())

    def take(self) -> Tensor:
        """Returns the tensor on the device."""
        present = self._present()
        if present is not None:
            return present
        self.start()
        assert self._arriving is not None
        tensor, mark = self._arriving
        self._arriving = None
        self._offload.setup.copies.compute_waits_for(mark)
        self._present = weakref.ref(tensor)
        return tensor

    def __del__(self) -> None:
        """Makes compute wait for a copy that was started and never taken: its memory is free from now on."""
        if self._arriving is not None:
            self._offload.setup.copies.compute_waits_for(self._arriving[1])


class _Stayed:
    """A saved tensor that stays where it is. With hooks autograd no longer looks whether it was written into since."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version = tensor, tensor._version

    def take(self) -> Tensor:
        """Returns the tensor, which must be as it was."""
        if self._tensor._version != self._version:
            kind, shape = type(self._tensor).__name__, list(self._tensor.shape)
            raise RuntimeError(
                f"one of the variables needed for gradient computation has been modified by an inplace operation: {kind} "
                f"{shape} is at version {self._tensor._version} and was saved at version {self._version}. Its backward pass "
                "must come before it is changed (by optimizer.step(), for one)."
            )
        return self._tensor


def _unpack(saved: Any) -> Tensor:
    if isinstance(saved, _Stayed):
        return saved.take()
    packed, again = saved if isinstance(saved, tuple) else (saved, None)
    found: Tensor = packed._offload.fetch(packed)
    return found if again is None else again(found)


def _nothing() -> None:
    return None


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """The tensor's strides where its elements fill their memory, otherwise contiguous ones (expanded or sliced views)."""
    return torch.empty_like(tensor, device="meta").stride()
