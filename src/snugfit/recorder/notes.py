"""What a recorder takes down: storages, what operators take inside and cost, on which stream, and who waits for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from snugfit import private_torch
from snugfit.attributes import Change
from snugfit.fake_device.accelerator import Stream
from snugfit.fake_device.ranks import cards_of_machine, runs_beside
from snugfit.operators.collective_calls import run_of
from snugfit.recorder.dispatch_plan import OperatorPlan
from snugfit.recorder.moment import FORWARD, Moment
from snugfit.recorder.storage_ledger import StorageLedger
from snugfit.recording import cublas
from snugfit.recording.generations import CardQuestions
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.trace_builder import TraceBuilder
from snugfit.values import fake_failure


class Notes:
    """Writes into a trace, each thing with the phase and the stream that are current."""

    def __init__(
        self, moment: Moment, ledger: StorageLedger, builder: TraceBuilder, card: CardQuestions, *, on_card: bool
    ) -> None:
        self._moment, self._ledger, self._builder, self._card, self._on_card = moment, ledger, builder, card, on_card
        self.stream = 0
        """The current stream."""
        self._last_run: dict[int, int] = {}
        self._waits: dict[int, list[int]] = {}
        self._streams_of_groups: dict[str, int] = {}
        self._library_workspaces: set[tuple[str, bool, int]] = set()
        self._hooks = 0

    def storage(self, tensor: torch.Tensor, module: str, operator: str = "") -> None:
        """Takes down a tensor's storage, unless it is known; without an operator, one that none made."""
        self._ledger.see(tensor, operator=operator, module=module, phase=self._moment.phase, stream=self.stream)

    def operator(self, plan: OperatorPlan, fresh: Sequence[torch.Tensor], module: str) -> None:
        """Takes down an operator: its new storages, the memory inside it, its cost."""
        name, stream, phase, cost = plan.name, self.stream, self._moment.phase, plan.cost
        if cost.product and self._on_card and plan.device == "device" and cublas.stays():
            self._library_workspace(phase, cublas.CUBLAS, cublas.workspace_bytes(self._card.own))
            if plan.by_lt and cublas.lt_has_its_own():
                self._library_workspace(phase, cublas.CUBLASLT, cublas.LT_BYTES)
        if plan.order and len(plan.order) == len(fresh):
            fresh = [fresh[number] for number in plan.order]
        line = fake_failure.place_outside() if fresh and self._moment.state is FORWARD else ""
        seen = 0
        # In the order of the device: `results` new tensors are there when a workspace is taken.
        for size, results, by_generation in plan.workspaces:
            for tensor in fresh[seen:results]:
                self._ledger.see(tensor, operator=name, module=module, phase=phase, stream=stream, line=line)
            seen = max(seen, results)
            self.inside(size, name, module, by_generation)
        for tensor in fresh[seen:]:
            self._ledger.see(tensor, operator=name, module=module, phase=phase, stream=stream, line=line)
        if not cost.kernels:
            return
        in_fp32 = cost.flops and self._on_card and cost.dtype == "float32"
        if in_fp32 and private_torch.rounds_to_tf32(name, bool(cost.product)):
            cost = cost._replace(dtype="tf32")
        run = OperatorRun(
            operator=name, module=module, phase=phase, device=plan.device, stream=stream, after=self._waited_for(),
            blocking=plan.blocking, at=len(self._builder), seconds=plan.seconds,
            line=fake_failure.place_outside() if plan.blocking else "", hooks=self._hooks, **cost._asdict(),
        )  # fmt: skip
        self._hooks = 0
        self._last_run[stream] = self._builder.run(run)

    def collective(self, func: Any, args: Sequence[Any], module: str) -> tuple[Callable[[], None], bool]:
        """Takes down a collective; returns what is called when it is waited for, and whether it has its group's stream."""
        group, stream, after = runs_beside(func, args), self.stream, self._waited_for()
        if group:
            if group not in self._streams_of_groups:
                self._streams_of_groups[group] = Stream().number
            after = (*after, *((self._last_run[stream],) if stream in self._last_run else ()))
            stream = self._streams_of_groups[group]
        phase = self._moment.phase
        run = run_of(func, args, cards_of_machine(), module=module, phase=phase, stream=stream, after=after)
        number = None
        if run is not None:
            number = self._last_run[stream] = self._builder.run(run._replace(at=len(self._builder)))

        def waited() -> None:
            if number is not None:
                self._waits.setdefault(self.stream, []).append(number)

        return waited, bool(group)

    def inside(self, size: int, operator: str, module: str, by_generation: tuple[int, ...] = ()) -> None:
        """Takes down memory that is allocated and freed within one call."""
        phase = self._moment.phase
        self._builder.workspace(
            size, operator=operator, module=module, phase=phase, stream=self.stream, by_generation=by_generation
        )
        self._ledger.peak_bytes = max(self._ledger.peak_bytes, self._ledger.allocated_bytes + size)

    def counted_hooks(self) -> list[Change]:
        """Returns what counts the hooks that pack and unpack saved tensors: the host runs them between two operators."""
        made = saved_tensors_hooks.__init__

        def counted(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
            @functools.wraps(hook)
            def called(saved: Any) -> Any:
                self._hooks += 1
                return hook(saved)

            return called

        def make(hooks: Any, pack_hook: Any, unpack_hook: Any) -> None:
            made(hooks, counted(pack_hook), counted(unpack_hook))

        return [(saved_tensors_hooks, "__init__", make)]

    def _waited_for(self) -> tuple[int, ...]:
        """The runs of other streams that the next one of the current stream waits for."""
        return tuple(self._waits.pop(self.stream, ()))

    def _library_workspace(self, phase: str, operator: str, size: int) -> None:
        """Takes down cuBLAS's workspace: taken at a thread's first product on a stream (ours, autograd's), never freed."""
        key = (operator, private_torch.current_node() is not None, self.stream)
        if key not in self._library_workspaces:
            self._library_workspaces.add(key)
            self._builder.alloc(size, category="temporaries", operator=operator, phase=phase, stream=self.stream)
            self._ledger.grow(size)

    def memory(self) -> tuple[int, int]:
        """Allocated memory as a script asks for it, with cuBLAS's workspace as large as on this card."""
        self._card.leave_out()
        return self._ledger.allocated_bytes, self._ledger.peak_bytes

    def on_backend(self, what: str, stream: int, value: Any) -> Any:
        """Takes down what was asked of `torch.sim`: streams, events, the cache."""
        if what == "stream":
            self.stream = stream
        elif what == "event":
            return self._last_run.get(stream)
        elif what == "wait":
            self._waits.setdefault(stream, []).append(value)
        elif what == "empty_cache":
            self._builder.empty_cache()
        return None
