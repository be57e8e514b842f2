"""What a recorder sees only where several processes train: collectives, and tensors that are shared out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from snugfit import private_torch
from snugfit.fake_device.ranks import issued
from snugfit.fake_device.translate import device_of
from snugfit.operators.collective_calls import gloo_bytes
from snugfit.private_torch import collectives, dispatcher, fake_tensors, shared_units
from snugfit.private_torch.fake_tensors import FakeTensor
from snugfit.recorder.moment import Moment
from snugfit.recorder.notes import Notes
from snugfit.recorder.storage_ledger import StorageLedger

_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)
NOT_OF_RANKS = object()


class RankOperators:
    """The part of a recorder that answers operators of `torch.distributed`."""

    _ledger: StorageLedger
    _moment: Moment
    _notes: Notes
    _among_ranks: bool
    _cuda: bool

    def _also_inside(self) -> AbstractContextManager[None]:
        raise NotImplementedError

    def _of_ranks(self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Handles what only exists with process groups; `NOT_OF_RANKS` for an ordinary operator."""
        for kind in types:
            if kind not in _PLAIN and kind.__torch_dispatch__ is not private_torch.PLAIN_DISPATCH:  # type: ignore[attr-defined]
                return NotImplemented  # a DTensor comes again as the tensor in it
        if fake_tensors.in_fake_mode():  # DTensor asks what shape a result would have
            if "device" in kwargs:  # torch's own code says cuda, whose driver may not be there
                kwargs = {**kwargs, "device": device_of(kwargs["device"])}
            return func(*args, **kwargs)
        namespace = func.namespace
        if namespace == collectives.FUNCTIONAL:
            with self._also_inside():
                return dispatcher.run_explicit_body(func, args, kwargs)
        if namespace == collectives.COLLECTIVES:
            return self._collective(func, args)
        # Into the room that collected weights have while a unit runs; the name first, as asking loads torch's sharding.
        if namespace == "fsdp" and func in shared_units.gathering():
            self._ledger.claim(kwargs["out"], "weights")
        return NOT_OF_RANKS

    def _collective(self, func: Any, args: Sequence[Any]) -> Any:
        """Records a collective: when it runs, on which stream, and who waits for it."""
        module = self._moment.module()
        if not self._cuda and (size := gloo_bytes(func, args)):
            self._notes.inside(size, str(func), module)
        waited, beside = self._notes.collective(func, args, module)

        def in_buckets(tensors: list[torch.Tensor]) -> None:
            self._ledger.claim(tensors, "gradients")

        return issued(func, args, waited, in_buckets, beside=beside)

    def join_ranks(self) -> None:
        """Takes note that there are process groups from now on."""
        self._among_ranks = True
