"""What each operator of a real training step takes from the allocator and keeps, event by event.

A dispatch mode sees every operator and marks its end in the stream of the allocator's own events (`profile_truth`), so
every allocation belongs to one operator, in exact order and without a clock. The same can be read off a recording of the
simulator; comparing the two shows what is predicted wrongly, by operator.

Known limitation: what is taken between two operators, such as a copy of the random state, counts for the one that follows.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from snugfit import phases, private_torch
from snugfit.private_torch import DirectMode, current_node
from snugfit.private_torch.backward_in_place import summed_in_place
from snugfit.profiler.temporaries import MARK_BYTES
from snugfit.profiler.truth import CpuTruth, CudaTruth
from snugfit.recorder.module_path import ModulePath
from snugfit.recording.trace import ALLOC, FREE, MARK, WORKSPACE, Trace

_NO_PHASE = ""
_add, _add_ = torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """What one run of one operator took."""

    step: int
    """The training step, from 0."""
    phase: str
    """The phase in which it ran; empty outside of all."""
    operator: str
    """The operator."""
    module: str
    """Dotted path of the module in which it ran."""
    kept: tuple[int, ...]
    """Bytes of every block that was still there at its end, in order."""
    inside_bytes: int
    """How far its own blocks stood above those at the end, at most: what it took and gave back."""


class OperatorEvents(DirectMode):
    """Watches a training run while the context is open; `taken` then says what each operator took."""

    def __init__(self, device: torch.device) -> None:
        """Prepares, and watches nothing yet.

        Args:
            device: Where the run trains: cpu or a CUDA device.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.step = 0
        """The training step; the caller counts."""
        self.modules = ModulePath()
        self._sizes: list[int] = []
        self._truth = CudaTruth(torch.device("cuda", device.index or 0)) if device.type == "cuda" else CpuTruth()
        self._truth.take = self._sizes.extend  # type: ignore[method-assign] # every event, not their sums
        self._phases: list[str] = []
        self._marks: list[tuple[int, str, str, str]] = []
        self._around = ExitStack()

    def __enter__(self) -> OperatorEvents:
        """Begins to watch."""
        self._around.enter_context(torch.autograd.set_multithreading_enabled(False))
        self._around.enter_context(phases.listen(self._on_phase))
        self._around.enter_context(self.modules)
        self._truth.start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Ends watching."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._truth.stop()
        self._around.close()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs one operator as it is and marks its end."""
        kwargs = kwargs or {}
        if func.namespace == "profiler":  # labels that torch's own code puts around its parts
            return func(*args, **kwargs)
        if not all(kind.__torch_dispatch__ is private_torch.PLAIN_DISPATCH for kind in types):  # type: ignore[attr-defined]
            return NotImplemented  # a tensor made of tensors: its parts come by on their own
        module = self._where()
        if func is _add and summed_in_place(args):  # as autograd does where no mode looks on
            func = _add_
        result = func(*args, **kwargs)
        self._truth.mark()
        self._marks.append((self.step, self._phases[-1] if self._phases else _NO_PHASE, str(func), module))
        return result

    def taken(self) -> list[Taken]:
        """Returns what each operator took, in order; operators that took nothing are left out."""
        segments = _segments(self._sizes)
        return [
            Taken(step, phase, operator, module, kept, inside)
            for (step, phase, operator, module), (kept, inside) in zip(self._marks, segments, strict=False)
            if kept or inside
        ]

    def _where(self) -> str:
        if self.modules.stack:
            return self.modules.stack[-1]
        node = current_node()
        return self.modules.of_node(node) if node is not None else ""

    def _on_phase(self, name: str, entered: bool) -> None:
        if entered:
            self._phases.append(name)
        elif self._phases:
            self._phases.pop()


def _segments(sizes: Iterable[int]) -> list[tuple[tuple[int, ...], int]]:
    """Returns blocks kept and bytes taken inside for each stretch of events that a mark ends.

    Args:
        sizes: Bytes of each event in order: positive for an allocation, negative for a release.
    """
    found, events = [], list[int]()
    for size in sizes:
        if size == MARK_BYTES:
            found.append(own_blocks(events))
            events = []
        elif size != -MARK_BYTES:
            events.append(size)
    return found


def own_blocks(sizes: Iterable[int]) -> tuple[tuple[int, ...], int]:
    """Returns what is left of a stretch's own allocations, and how far they stood above that.

    Args:
        sizes: Bytes of each event in order; a release counts only where the stretch has taken a block of that size.

    Returns:
        Bytes of the blocks that are left, in order, and the bytes by which all own blocks were at most more than those.
    """
    own, balance, peak = list[int](), 0, 0
    for size in sizes:
        if size > 0:
            own.append(size)
            balance += size
            peak = max(peak, balance)
        elif -size in own:
            own.reverse()
            own.remove(-size)
            own.reverse()
            balance += size
    return tuple(own), peak - balance


def predicted_taken(trace: Trace) -> list[Taken]:
    """Returns what each operator of a recording takes on the device, in the form of `OperatorEvents.taken`.

    Args:
        trace: The recording.

    Returns:
        One row for each run of an operator that takes memory, in order.
    """
    found: list[Taken] = []
    ends = [run.at for run in trace.runs]
    step, phases_open = 0, list[str]()
    key: tuple[str, str] | None = None
    events: list[int] = []
    sizes: dict[int, int] = {}

    end = 0  # index of the event with which the present operator is over

    def close() -> None:
        nonlocal key, events
        if key is not None:
            kept, inside = own_blocks(events)
            if kept or inside:
                found.append(Taken(step, phases_open[-1] if phases_open else _NO_PHASE, *key, kept, inside))
        key, events = None, []

    def begin(index: int, operator: str, module: str) -> None:
        """The event is of the run that is taken down after it, or of an operator without kernels, which is one event."""
        nonlocal key, end
        if key == (operator, module):
            return
        close()
        key = (operator, module)
        at = bisect_right(ends, index)
        own = at < len(ends) and trace.runs[at].operator == operator
        end = ends[at] if own else index + 1

    for index, (kind, subject, value) in enumerate(zip(trace.kinds, trace.subjects, trace.values, strict=True)):
        if key is not None and (kind == MARK or index >= end):
            close()
        if kind == MARK:
            name, entered = trace.phases[subject], bool(value & 1)
            step = value >> 1
            if entered:
                phases_open.append(name)
            elif phases_open:
                phases_open.pop()
        elif kind == ALLOC and trace.storages[subject].place == "device" and trace.storages[subject].nbytes:
            row = trace.storages[subject]
            begin(index, row.operator, row.module)
            sizes[subject] = row.nbytes
            events.append(row.nbytes)
        elif kind == WORKSPACE and trace.workspaces[subject].nbytes:
            work = trace.workspaces[subject]
            begin(index, work.operator, work.module)
            events += [work.nbytes, -work.nbytes]
        elif kind == FREE and subject in sizes:
            if key is not None:
                events.append(-sizes[subject])
            del sizes[subject]
    close()
    return found
