"""What a recorder sees only where several processes train: collectives, and tensors that are shared out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from snugfit import private_torch
from snugfit.fake_device.accelerator import Stream
from snugfit.fake_device.ranks import cards_of_machine, issued, runs_beside
from snugfit.operators.collective_calls import gloo_bytes, run_of
from snugfit.private_torch import collectives, dispatcher, fake_tensors, shared_units
from snugfit.private_torch.fake_tensors import FakeTensor
from snugfit.recorder.storage_ledger import StorageLedger
from snugfit.recording.trace_builder import TraceBuilder

_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)
NOT_OF_RANKS = object()


class RankOperators:
    """The part of a recorder that answers operators of `torch.distributed`."""

    _builder: TraceBuilder
    _ledger: StorageLedger
    _cuda: bool
    _stream: int
    _last_run: dict[int, int]
    _waits: dict[int, list[int]]
    _streams_of_groups: dict[str, int]

    @property
    def phase(self) -> str:
        """The phase of the run."""
        raise NotImplementedError

    def _also_inside(self) -> AbstractContextManager[None]:
        raise NotImplementedError

    def _where(self) -> str:
        raise NotImplementedError

    def _of_ranks(self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Handles what only exists with process groups; `NOT_OF_RANKS` for an ordinary operator."""
        for kind in types:
            if kind not in _PLAIN and kind.__torch_dispatch__ is not private_torch.PLAIN_DISPATCH:  # type: ignore[attr-defined]
                return NotImplemented  # a DTensor comes again as the tensor in it
        if fake_tensors.in_fake_mode():  # DTensor asks what shape a result would have
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
        module, current = self._where(), self._stream
        if not self._cuda:
            self._inside(gloo_bytes(func, args), str(func), module)
        group = runs_beside(func, args)
        stream = current
        after = tuple(self._waits.pop(current, ()))
        if group:
            if group not in self._streams_of_groups:
                self._streams_of_groups[group] = Stream().number
            stream = self._streams_of_groups[group]
            after = (*after, *((self._last_run[current],) if current in self._last_run else ()))
        run = run_of(func, args, cards_of_machine(), module=module, phase=self.phase, stream=stream, after=after)
        number = None
        if run is not None:
            number = self._last_run[stream] = self._builder.run(run._replace(at=len(self._builder)))

        def waited() -> None:
            if number is not None:
                self._waits.setdefault(self._stream, []).append(number)

        return issued(func, args, waited, beside=bool(group))

    def _inside(self, size: int, operator: str, module: str) -> None:
        """Records memory that is allocated and freed within one call."""
        if size:
            self._builder.workspace(size, operator=operator, module=module, phase=self.phase, stream=self._stream)
            self._ledger.peak_bytes = max(self._ledger.peak_bytes, self._ledger.allocated_bytes + size)
