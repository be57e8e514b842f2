"""What a recording is: every storage of a run with its birth and death, and every operator, in order.

A trace is made once by the recorder and replayed often: without a limit, at each card's size, by the clock and the
anatomy. So it is compact (parallel columns, tuples of ints, one row for each storage), immutable, and made of ints and
strings only. It knows nothing of any allocator: sizes are the bytes that were asked for, and how they are rounded and placed
is the replay's business.

`TraceBuilder` (`trace_builder.py`) is the only way to make one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from snugfit.recording.operator_run import OperatorRun

CATEGORIES = ("weights", "gradients", "optimizer_state", "activations", "temporaries", "inputs", "other")

ALLOC, FREE, RESIZE, WORKSPACE, MARK, EMPTY_CACHE = range(6)
"""Kinds of events: the first of the three columns. What subject and value mean is said at `Trace`."""


class Storage(NamedTuple):
    """One block of memory that a tensor, or several views of it, live in."""

    id: int
    """Its index in `Trace.storages`."""
    nbytes: int
    """Bytes asked for at its birth; 0 is allowed and takes nothing."""
    place: str
    """`device` or `host`."""
    category: str
    """One of `CATEGORIES`."""
    module: str
    """Dotted path of the module in which it was made; empty outside of all modules."""
    operator: str
    """The operator that made it, such as `aten.mm.default`."""
    phase: str
    """The phase in which it was made, such as `forward`."""
    stream: int
    """The stream that was current; 0 is the default stream. Every stream has its own pools."""
    line: str = ""
    """`file:line` of a person's code that made it in a forward pass; empty where snugfit's own did, or autograd."""


class Workspace(NamedTuple):
    """Memory that is taken and given back inside one operator; it shows only in a peak."""

    nbytes: int
    """Bytes asked for."""
    operator: str
    """The operator that needs it."""
    module: str
    """Dotted path of the module in which the operator ran."""
    phase: str
    """The phase in which it ran."""
    stream: int
    """The stream that was current."""
    by_generation: tuple[int, ...] = ()
    """The same bytes on each generation of cards (`generations.GENERATIONS`); empty where they all take as many."""


class Repeat(NamedTuple):
    """A stretch of runs that stands for several like it: one microbatch of many."""

    first_run: int
    """Index of its first run."""
    last_run: int
    """Index behind its last run."""
    times: int
    """How often it happens again right after itself."""


class Mark(NamedTuple):
    """Where a phase begins or ends."""

    event: int
    """Index of the event."""
    phase: str
    """The phase."""
    entered: bool
    """Whether it begins here."""
    step: int
    """Number of the training step, from 0."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """Everything that happened to memory in a run, in order, and every operator."""

    storages: tuple[Storage, ...]
    """All storages that ever lived; a storage's id is its index."""
    workspaces: tuple[Workspace, ...]
    """Memory taken and given back inside operators."""
    phases: tuple[str, ...]
    """Names that marks refer to by index."""
    kinds: bytes
    """Kind of each event: ALLOC, FREE, RESIZE, WORKSPACE, MARK or EMPTY_CACHE."""
    subjects: tuple[int, ...]
    """Storage id, workspace index (WORKSPACE), phase index (MARK) or 0 (EMPTY_CACHE)."""
    values: tuple[int, ...]
    """New bytes (RESIZE), 2 * step + (1 if entered else 0) (MARK), 0 for the rest."""
    runs: tuple[OperatorRun, ...] = ()
    """Operators in the order in which the host issued them."""
    repeats: tuple[Repeat, ...] = ()
    """Stretches of runs that happen several times and were recorded once; their memory is the same every time."""
    taken_apart: tuple[tuple[str, str], ...] = ()
    """Operators that the device has no kernel for, with the module they ran in; `runs` has their parts."""

    def __reduce__(self) -> Any:
        """Pickles plain tuples: for named ones Python looks up fields, a microsecond for each of a million rows."""
        rows = {name: tuple(map(tuple, getattr(self, name))) for name in _ROWS}
        rest = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in _ROWS}
        return _travelled, (rows, rest)

    def __len__(self) -> int:
        """The number of events."""
        return len(self.kinds)

    def marks(self) -> list[Mark]:
        """Returns where phases begin and end, in order."""
        found = []
        i = self.kinds.find(MARK)
        while i >= 0:
            found.append(Mark(i, self.phases[self.subjects[i]], bool(self.values[i] & 1), self.values[i] >> 1))
            i = self.kinds.find(MARK, i + 1)
        return found

    def last_step(self) -> int:
        """Returns the number of the last step that came to its update; behind it a script may evaluate, or begin another."""
        return self._last_of(self.marks())

    def _last_of(self, marks: Sequence[Mark]) -> int:
        whole = [mark.step for mark in marks if mark.phase == "optimizer" and mark.entered]
        if whole:
            return max(whole)
        for phase in ("optimizer", "backward"):  # a script's own steps have no such marks
            at = next((run.at for run in reversed(self.runs) if run.phase == phase), None)
            if at is not None:
                # a fused update makes nothing: the mark behind it stands where its own events would
                return max((mark.step for mark in marks if mark.event < at), default=0)
        return max((mark.step for mark in marks), default=0)

    def step_events(self, step: int | None = None) -> tuple[int, int]:
        """Returns the events of a step (None: the last whole one), from its first mark to the next step's first.

        Index of its first mark, -1 for a trace without marks; and of the mark behind it, or the number of events.
        """
        marks = self.marks()
        if not marks:
            return -1, len(self)
        wanted = self._last_of(marks) if step is None else step
        begin = min((mark.event for mark in marks if mark.step == wanted), default=len(self))
        end = min((mark.event for mark in marks if mark.step > wanted and mark.event > begin), default=len(self))
        return begin, end

    def where(self, index: int) -> tuple[str, str, str]:
        """Returns what was running when an event happened.

        Phase, operator and module. For a birth those of the storage, for a workspace its own, and for the rest those of
        the latest birth or workspace before it; empty strings when there is none.
        """
        for i in range(index, -1, -1):
            row: Storage | Workspace
            if self.kinds[i] == ALLOC:
                row = self.storages[self.subjects[i]]
            elif self.kinds[i] == WORKSPACE:
                row = self.workspaces[self.subjects[i]]
            else:
                continue
            return row.phase, row.operator, row.module
        return "", "", ""


_ROWS: dict[str, Any] = {"storages": Storage, "workspaces": Workspace, "runs": OperatorRun}


def _travelled(rows: Mapping[str, Any], rest: Mapping[str, Any]) -> Trace:
    columns: dict[str, Any] = {name: tuple(map(_ROWS[name]._make, values)) for name, values in rows.items()}
    return Trace(**columns, **rest)
