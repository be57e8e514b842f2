"""An update that has begun is finished: an operator that finds no memory is made room for, and runs again.

An optimizer changes step counts, moments and weights in place, one operator after the other, and makes temporaries in
between. When one of those does not fit, some of the changes are made and nothing says which. But an operator makes its
result before it changes anything, so a failed one has done nothing yet. Here it never fails as far as the optimizer can
see: a dispatch mode frees what can be freed and runs the operator again. So it works for every optimizer, low-bit ones and
the caller's own included, and no parameter is updated twice.

Where memory is really short there are two cases. Nothing is changed yet: the error goes on to the step, which is undone, and
state that the update had begun to make is dropped; state is made before the first change, where the class of the optimizer
has a method for it. Something is changed: weights, gradients and state that the operator does not touch leave for the host,
the largest first, until it fits, and come back when an operator needs them, at the latest when the update ends. That is
slow and happens once: the step after it goes on with a recipe whose update needs less, where there is one (`recovery.py`).

An optimizer whose step is one fused kernel makes everything before it changes anything and needs no mode; the others pay
about 5 microseconds of the host's time for each operator, and no memory.

Why temporaries are not reserved by allocating and freeing them beforehand: what an update takes is not known before its
first step, a trial step would change the weights where an optimizer has kernels of its own, and one block as large as all
of them fits into no cached segment of CUDA's allocator (ViT-B/16, batch 16, AdamW by lists: 3474 MiB reserved, not 3134).

Known limits: a kernel that allocates in the middle of its changes without torch's dispatcher (an extension called
directly, a step that the caller has compiled) is not seen; its failure ends the run, and the error says so, and it must not
come behind an operator of the same update for which weights had to leave. State that
appears in the middle of a first update and fits nowhere does too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.errors import OutOfMemoryError
from snugfit.private_torch import DirectMode
from snugfit.private_torch.dispatcher import has_kernel, places_written, run_on_cpu
from snugfit.techniques.batches import tensors_of
from snugfit.techniques.host_pool import HostPool
from snugfit.techniques.parameter_update import JointUpdate
from snugfit.training.out_of_memory import free_memory, is_out_of_memory, release_traceback, retry_after_freeing, tried


class UnbrokenUpdate(DirectMode):
    """Sees every operator of an update, and runs those again that find no memory."""

    def __init__(self, pool: HostPool, held: Callable[[], Iterable[Tensor]]) -> None:
        """Begins with nothing changed; `held` gives the tensors that may leave the device for the pool."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._pool, self._held = pool, held
        self._away: dict[int, tuple[Tensor, Tensor]] = {}
        self._before: set[int] = set()
        self._plain: set[type] = set()
        self.changed = False
        """Whether the update has changed a weight or its state."""
        self.interrupted = False
        """Whether an operator had to run again."""

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether torch.compile may look past this mode: yes, compiled code stays compiled."""
        return True

    def begin(self) -> None:
        """Begins another update."""
        self.changed = self.interrupted = False

    def take(self, update: JointUpdate, bad: Tensor | None) -> None:
        """Takes one part of the update. A failure is a plain error if nothing changed yet, else `OutOfMemoryError`.

        `bad`: 0-dim float32 flag on the device: 1 leaves everything alone; None: the step is known to be good.
        """
        known = len(update.optimizer.state)
        try:
            if not update.at_once(bad):
                self._watched(update, bad)
            elif tried(lambda: update.step(bad))[1] is not None:
                self.interrupted = True
                _drop_state(update, known)
                free_memory(self._pool.device)
                self._watched(update, bad)
            self.changed = True
            retry_after_freeing(update.send, self._pool.device)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if self.changed:
                raise half_way(release_traceback(error)) from None
            _drop_state(update, known)
            raise

    def _watched(self, update: JointUpdate, bad: Tensor | None) -> None:
        held = update.held()
        self._before = {one.untyped_storage()._cdata for one in held if one.layout == torch.strided}
        self._plain = {Tensor, nn.Parameter, *(type(tensor) for tensor in held)}
        try:
            with self:
                update.make_state()
                update.step(bad)
        finally:
            self._bring_back(set(self._away))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator, once more where it found no memory."""
        kwargs = kwargs or {}
        if types and not self._plain.issuperset(types):
            return NotImplemented  # a tensor class of the optimizer's own state: the operators that it consists of come next
        if self._away:
            self._bring_back(_storages((args, kwargs)))
        if func.namespace != "aten" and _has_inside(func) and _on_cpu((args, kwargs)):
            with self:  # the operators inside it are seen too
                return run_on_cpu(func, args, kwargs)
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.interrupted = True
        else:
            # Only writes into what was there before the update count: temporaries may be lost.
            if not self.changed and func._schema.is_mutable:
                self._note_change(func, args, kwargs)
            return result
        free_memory(self._pool.device)
        result = self._with_room(functools.partial(func, *args, **kwargs), _storages((args, kwargs)))
        self._note_change(func, args, kwargs)
        return result

    def _note_change(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        for position, name in places_written(func):
            written = args[position] if position < len(args) else kwargs.get(name)
            self.changed = self.changed or not self._before.isdisjoint(_storages(written))

    def _with_room(self, action: Callable[[], Any], needed: set[int]) -> Any:
        """Runs an action again and again, moving tensors that it does not need to the host until it fits."""
        leaving: Iterator[torch.UntypedStorage] | None = None
        while True:
            try:
                return action()
            except Exception as error:
                if not is_out_of_memory(error) or not self.changed:
                    raise
                leaving = leaving or self._may_leave(needed)
                storage = next(leaving, None)
                if storage is None:
                    raise
            # The storage is emptied in place: every tensor on it stays valid, and has its numbers again when
            # `_bring_back` has given it memory.
            flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            self._away[storage._cdata] = flat, self._pool.copy_of(flat)
            storage.resize_(0)

    def _may_leave(self, needed: set[int]) -> Iterator[torch.UntypedStorage]:
        """The storages of the update on the device that are not needed now, the largest first."""
        storages = {one._cdata: one for tensor in self._held() for one in _storages_of(tensor)}
        device = self._pool.device.type
        leaving = [
            one
            for key, one in storages.items()
            if key not in needed and one.nbytes() and one.resizable() and one.device.type == device
        ]
        return iter(sorted(leaving, key=lambda one: one.nbytes(), reverse=True))

    def _bring_back(self, wanted: set[int]) -> None:
        for key in wanted & self._away.keys():
            flat, host = self._away[key]
            self._with_room(functools.partial(flat.untyped_storage().resize_, host.nbytes), wanted)
            flat.copy_(host)
            del self._away[key]


def half_way(cause: str) -> OutOfMemoryError:
    """Returns the error for an update that can neither be undone nor finished."""
    return OutOfMemoryError(
        f"memory ran out inside the update, after some parameters were changed and before the others were: {cause} "
        "The step can neither be undone nor finished; go back to a checkpoint.",
        undone=False,
    )


def _drop_state(update: JointUpdate, known: int) -> None:
    """Drops state that was being made when memory ran out (entries after the `known` ones): nothing has used it."""
    for weight in list(update.optimizer.state)[known:]:
        del update.optimizer.state[weight]


@functools.cache
def _has_inside(func: Any) -> bool:
    """Whether a library's operator writes into tensors by a cpu kernel, which may fail between two writes."""
    return bool(func._schema.is_mutable) and has_kernel(func.name(), "CPU")


def _on_cpu(values: Any) -> bool:
    return all(type(one) in (Tensor, nn.Parameter) and one.device.type == "cpu" for one in tensors_of(values))


def _storages_of(tensor: Tensor) -> list[torch.UntypedStorage]:
    return [tensor.untyped_storage()] if tensor.layout == torch.strided else []


def _storages(values: Any) -> set[int]:
    return {storage._cdata for tensor in tensors_of(values) for storage in _storages_of(tensor)}
