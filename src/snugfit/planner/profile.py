"""What one recording says about every block: what it saves for backward, and what lives while each part of a step runs.

A step of a recording is walked through once. A stretch is a part of forward or backward that runs in one block, or
between blocks; of each stretch the highest point is kept, with what was alive then: weights and state, gradients, and
the rest, which grows with the samples that go through the model at a time. A block is open from the end of its forward
pass to the start of its backward pass; while it is, what it saved is alive. `compose.py` puts other recipes together
from these rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from snugfit.recording.clock import runs_of_step
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.trace import ALLOC, FREE, MARK, RESIZE, WORKSPACE, Trace

OUTSIDE = -1
"""Index that stands for what runs in no block."""
Label = tuple[str, int, int]
"""A stretch: phase, index of the block or `OUTSIDE`, and how many blocks are open."""
EVALUATION: Label = ("evaluation", OUTSIDE, 0)
"""The stretch of evaluation, in which no block is open: nothing is saved for a backward pass."""
_FIXED = ("weights", "optimizer_state")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The highest point of a stretch."""

    fixed_bytes: int
    """Weights and optimizer state."""
    gradient_bytes: int
    """Gradients."""
    other_bytes: int
    """Activations, temporaries and the rest, what open blocks saved included."""
    open: tuple[int, ...]
    """Indices of the blocks that are open."""

    @property
    def total_bytes(self) -> int:
        """All that is alive."""
        return self.fixed_bytes + self.gradient_bytes + self.other_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class StepProfile:
    """What a recording shows of its last step."""

    saved_bytes: tuple[int, ...]
    """For each block: bytes made in its forward pass that are alive when the whole forward pass has ended."""
    forward_seconds: tuple[float, ...]
    """For each block: how long its forward passes keep the card or the host busy in a step."""
    rows: dict[Label, Row]
    """The stretches of forward and backward, and evaluation."""
    outside_bytes: int
    """The most bytes alive outside of the last step's forward and backward: building, update."""
    gradient_bytes: int
    """The most bytes in gradients."""
    weight_bytes: int
    """The most bytes in weights within a pass."""

    @property
    def held_bytes(self) -> tuple[int, int]:
        """The most bytes of weights and optimizer state within a pass, and of gradients."""
        return max((row.fixed_bytes for row in self.rows.values()), default=0), self.gradient_bytes

    @property
    def most_bytes(self) -> int:
        """The most bytes alive in the step."""
        return max([self.outside_bytes, *(row.total_bytes for row in self.rows.values())])

    def shifted(self, base: StepProfile, other: StepProfile) -> StepProfile:
        """Returns this profile plus the difference of two others: a guess at another way of updating.

        `base`: the third, of a training that differs from this one in its passes only.
        `other`: it with another way of updating.
        """
        rows = {
            label: dataclasses.replace(
                row,
                fixed_bytes=max(row.fixed_bytes + other.rows[label].fixed_bytes - base.rows[label].fixed_bytes, 0),
                gradient_bytes=max(
                    row.gradient_bytes + other.rows[label].gradient_bytes - base.rows[label].gradient_bytes, 0
                ),
            )
            if label in base.rows and label in other.rows
            else row
            for label, row in self.rows.items()
        }
        outside = max(self.outside_bytes + other.outside_bytes - base.outside_bytes, 0)
        return dataclasses.replace(self, rows=rows, outside_bytes=outside)


def profile(trace: Trace, blocks: Sequence[str], seconds_of: Callable[[OperatorRun], float]) -> StepProfile:
    """Returns the profile of the last step of a recording; `seconds_of` gives the time of an operator.

    `blocks`: names of the blocks, in the order of the model.
    """
    return _Walk(trace, blocks).result(seconds_of)


class _Walk:
    """One walk through the events."""

    def __init__(self, trace: Trace, blocks: Sequence[str]) -> None:
        self._trace = trace
        self._blocks = list(blocks)
        self._known: dict[str, int] = {}
        self._last_step = trace.last_step()
        self._now = {"fixed": 0, "gradients": 0, "other": 0}
        self._weights = self._most_weights = self._most_gradients = self._outside = 0
        self._rows: dict[Label, Row] = {}
        self._held: dict[int, int] = {}
        self._owners: dict[int, int] = {}
        self._saved = [0] * len(self._blocks)
        self._open: list[int] = []
        self._current = OUTSIDE
        self._phases: list[str] = []
        self._in_last_step = False
        self._between = False
        """Whether a forward pass has ended whose backward pass has not begun: what blocks saved is alive."""
        self._walk()

    def _block(self, module: str) -> int:
        """The index of the block that a module lies in."""
        if module not in self._known:
            inside = (i for i, name in enumerate(self._blocks) if module == name or module.startswith(name + "."))
            self._known[module] = next(inside, OUTSIDE)
        return self._known[module]

    def _walk(self) -> None:
        trace = self._trace
        runs, at = trace.runs, 0
        for index, kind in enumerate(trace.kinds):
            while at < len(runs) and runs[at].at <= index:
                at += 1
            subject = trace.subjects[index]
            if kind == MARK:
                self._mark(trace.phases[subject], bool(trace.values[index] & 1), trace.values[index] >> 1)
                continue
            if at < len(runs) and runs[at].phase in ("forward", "backward"):
                self._enter(self._block(runs[at].module))
            if kind == ALLOC:
                self._hold(subject, trace.storages[subject].nbytes)
            elif kind == FREE:
                self._drop(subject)
            elif kind == RESIZE:
                self._drop(subject)
                self._hold(subject, trace.values[index])
            elif kind == WORKSPACE:
                self._look(trace.workspaces[subject].nbytes)

    @property
    def _phase(self) -> str:
        return self._phases[-1] if self._phases else ""

    @property
    def _watched(self) -> bool:
        return self._in_last_step and self._phase in ("forward", "backward")

    def _mark(self, phase: str, entered: bool, step: int) -> None:
        self._in_last_step = step == self._last_step
        if phase in ("forward", "backward", "optimizer") and "evaluation" not in self._phases:
            self._between = phase == "forward" and not entered
        if entered:
            self._phases.append(phase)
            if phase == "forward":
                self._open, self._current = [], OUTSIDE
                self._owners.clear()
            elif phase == "backward":
                self._leave()
        else:
            if phase == "forward" and self._in_last_step:
                self._leave()
                self._saved = [0] * len(self._blocks)
                for storage in self._owners.keys() & self._held.keys():
                    self._saved[self._owners[storage]] += self._held[storage]
            if self._phases:
                self._phases.pop()

    def _leave(self) -> None:
        if self._current != OUTSIDE and self._current not in self._open:
            self._open.append(self._current)
        self._current = OUTSIDE

    def _enter(self, block: int) -> None:
        if block == self._current or not self._watched:
            return
        if self._phase == "forward":
            self._leave()
        elif block in self._open:
            self._open.remove(block)
        self._current = block

    def _hold(self, storage: int, nbytes: int) -> None:
        row = self._trace.storages[storage]
        if row.place != "device":
            return
        self._held[storage] = nbytes
        self._count(row.category, nbytes)
        if self._watched and self._phase == "forward" and row.category not in (*_FIXED, "gradients"):
            owner = self._block(row.module)
            if owner != OUTSIDE:
                self._owners[storage] = owner
        self._look(0)

    def _drop(self, storage: int) -> None:
        nbytes = self._held.pop(storage, None)
        if nbytes is not None:
            self._count(self._trace.storages[storage].category, -nbytes)

    def _count(self, category: str, change: int) -> None:
        kind = "fixed" if category in _FIXED else category if category == "gradients" else "other"
        self._now[kind] += change
        self._most_gradients = max(self._most_gradients, self._now["gradients"])
        self._weights += change if category == "weights" else 0

    def _look(self, workspace_bytes: int) -> None:
        total = sum(self._now.values()) + workspace_bytes
        if self._watched:
            label, blocks = (self._phase, self._current, len(self._open)), tuple(self._open)
            self._most_weights = max(self._most_weights, self._weights)
        elif "evaluation" in self._phases:  # grows with the microbatch, as forward does
            label, blocks = EVALUATION, ()
        elif self._between and self._in_last_step:  # several processes tell each other something, for example
            label, blocks = ("backward", OUTSIDE, len(self._open)), tuple(self._open)
        else:
            if self._phase not in ("forward", "backward") and not self._between:
                self._outside = max(self._outside, total)
            return
        known = self._rows.get(label)
        if known is None or total > known.total_bytes:
            fixed, gradients, other = self._now.values()
            self._rows[label] = Row(fixed, gradients, other + workspace_bytes, blocks)

    def result(self, seconds_of: Callable[[OperatorRun], float]) -> StepProfile:
        """Puts the profile together."""
        seconds = [0.0] * len(self._blocks)
        for index in runs_of_step(self._trace):
            run = self._trace.runs[index]
            if run.phase == "forward" and (block := self._block(run.module)) != OUTSIDE:
                seconds[block] += seconds_of(run)
        return StepProfile(
            saved_bytes=tuple(self._saved),
            forward_seconds=tuple(seconds),
            rows=self._rows,
            outside_bytes=self._outside,
            gradient_bytes=self._most_gradients,
            weight_bytes=self._most_weights,
        )
