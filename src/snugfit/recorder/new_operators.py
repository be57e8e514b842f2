"""Operators without a plan: what they do to fake tensors is worked out, and a plan made of it where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from snugfit.fake_device.personality import DEVICE_TYPE
from snugfit.operators.operator_truth import new_tensors
from snugfit.private_torch.fake_tensors import same_memory
from snugfit.recorder import dispatch_plan
from snugfit.recorder.captured import Captured
from snugfit.recorder.dispatch_plan import OperatorPlans
from snugfit.recorder.fake_calls import LIFT, FakeCalls, is_mask, number_read, selects_by_masks, written_by
from snugfit.recorder.notes import Notes
from snugfit.recorder.storage_ledger import StorageLedger
from snugfit.techniques.batches import tensors_in
from snugfit.values.carried_values import KNOWING
from snugfit.values.known_values import follow
from snugfit.values.read_values import ReadValues

_aten = torch.ops.aten
_item = _aten._local_scalar_dense.default
_is_set_to = _aten.is_set_to.default
_COMPARED = _aten.equal.default, _aten.allclose.default
_RESIZING = ("resize_", "resize_as_", "set_", "_resize_output_")


class NewOperators:
    """The part of a recorder that works out operators without a plan, and what is known of their results."""

    values: ReadValues
    answered: set[str]
    _calls: FakeCalls
    _captured: Captured
    _cuda: bool
    _ledger: StorageLedger
    _notes: Notes
    _plans: dict[Any, OperatorPlans]

    def _also_inside(self) -> AbstractContextManager[None]:
        raise NotImplementedError

    def _work_out(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        module: str,
        found: tuple[Any, list[torch.Tensor]] | None,
    ) -> Any:
        """Runs an operator that has no plan, and makes a plan where that is possible."""
        tensors = tensors_in((*args, *kwargs.values()))
        written = written_by(func, args, kwargs)
        sizes = [tensor.untyped_storage().nbytes() for tensor in written]
        if func is _item:
            if self._cuda and tensors[0].device.type == DEVICE_TYPE:
                self._notes.operator(number_read(tensors[0]), (), module)
            return self.values.number(tensors[0], module)
        if self._captured.has_numbers and self._cuda and any(t.device.type == DEVICE_TYPE for t in tensors):
            args = self._captured.on_device(args)
            tensors = tensors_in((*args, *kwargs.values()))
        if func is _is_set_to:
            return same_memory(*args)
        if func in _COMPARED:
            return same_memory(*args[:2]) or self.values.compared(func, args, kwargs, module)
        if selects_by_masks(func, args):
            return self._selected(func, args, kwargs, module)
        call = self._calls.run(func, args, kwargs, tensors, module)
        unscaling = func._opname.startswith("_amp_foreach_non_finite_check")
        if unscaling:
            self._ledger.set_value(call.args[1], 0.0)
            self.answered.add("the loss scaler was told that all gradients are finite")
        resizing = func._opname in _RESIZING or sizes != [tensor.untyped_storage().nbytes() for tensor in written]
        if resizing:  # by name, or an empty `out=` that was given its size
            for tensor in written:
                self._ledger.resized(tensor.untyped_storage())
        # What is made of values was made below all modes, and is first seen here.
        known = set() if func is LIFT else {tensor.untyped_storage()._cdata for tensor in tensors}
        fresh = new_tensors(call.result, known)
        plan, result, fresh = self._calls.plan(func, call, tensors, fresh)
        # What depends on values, or changes a storage, has to be worked out each time.
        once = call.by_values or resizing or unscaling or torch.Tag.inplace_view in func.tags
        if found is not None and not once:
            outputs = dispatch_plan.outputs_of(result, found[1])
            if outputs is not None:
                self._plans[func].plans[found[0]] = plan._replace(outputs=outputs[0], shape=outputs[1])
        self._notes.operator(plan, fresh, module)
        if func in KNOWING:
            self._know(func, call.args, tensors, fresh)
        follow(func, args, kwargs, tensors, result)
        return self._ran(func, args, kwargs, result)

    def _ran(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Any:
        """Returns the result of a recorded operator; a pretend card, which computes, starts its work here."""
        return result

    def _selected(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], module: str) -> Any:
        """Runs an operator that selects by masks as one that selects by positions."""
        with self.values.selecting(args[0]), self._also_inside():
            for index in filter(is_mask, args[1]):
                self.values.sizes.count(index, str(func), module)
            places: list[Any] = []
            for index in args[1]:
                places += _aten.nonzero.default(index).unbind(1) if is_mask(index) else [index]
            return func(args[0], places, *args[2:], **kwargs)

    def _know(
        self, func: Any, args: Sequence[Any], sources: Sequence[torch.Tensor], copies: Sequence[torch.Tensor]
    ) -> None:
        """A copy of the batch on the device is still the batch; a known truth value stays known."""
        if not sources or not copies:
            return
        if self._ledger.category(sources[0]) == "inputs":
            self._ledger.claim(copies, "inputs")
        self.values.carry(func, args, sources, copies)
