"""How a trace is made: events are collected as they happen.

A storage's category may be decided late (a tensor becomes a gradient when it is accumulated, a temporary becomes an
activation when it is saved), any time before `build`.
"""

from __future__ import annotations

from typing import Any, Literal

from snugfit.errors import InputError
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.trace import (
    ALLOC,
    CATEGORIES,
    EMPTY_CACHE,
    FREE,
    MARK,
    RESIZE,
    WORKSPACE,
    Storage,
    Trace,
    Workspace,
)

Place = Literal["device", "host"]
_PLACE, _CATEGORY, _MODULE, _OPERATOR, _LINE = 1, 2, 3, 4, 7
"""Positions in a recorded row (a `Storage` without its id)."""


class TraceBuilder:
    """Collects events as they happen and makes a `Trace` of them."""

    def __init__(self) -> None:
        """Starts an empty trace."""
        self._storages: list[list[Any]] = []
        self._alive: list[bool] = []
        self._workspaces: list[Workspace] = []
        self._phases: dict[str, int] = {}
        self._kinds = bytearray()
        self._subjects: list[int] = []
        self._values: list[int] = []
        self._runs: list[OperatorRun] = []
        self.taken_apart: dict[tuple[str, str], None] = {}
        """Operator and module of all that was recorded in parts."""

    def __len__(self) -> int:
        """The number of events so far."""
        return len(self._kinds)

    def _event(self, kind: int, subject: int, value: int = 0) -> None:
        self._kinds.append(kind)
        self._subjects.append(subject)
        self._values.append(value)

    def alloc(
        self,
        nbytes: int,
        *,
        place: Place = "device",
        category: str = "temporaries",
        module: str = "",
        operator: str = "",
        phase: str = "",
        stream: int = 0,
        line: str = "",
    ) -> int:
        """A storage is born; returns its id. Its category may be changed later (`set_category`).

        `nbytes`: bytes asked for, 0 or more.
        `place`: where it lives.
        """
        storage = len(self._storages)
        self._storages.append([nbytes, place, category, module, operator, phase, stream, line])
        self._alive.append(True)
        self._event(ALLOC, storage)
        return storage

    def free(self, storage: int) -> None:
        """A living storage dies."""
        assert self._alive[storage], f"storage {storage} is already dead"
        self._alive[storage] = False
        self._event(FREE, storage)

    def resize(self, storage: int, nbytes: int) -> None:
        """A living storage gets another size; FSDP frees parameters with 0 and brings them back so."""
        assert self._alive[storage], f"storage {storage} is already dead"
        self._event(RESIZE, storage, nbytes)

    def workspace(
        self,
        nbytes: int,
        *,
        operator: str = "",
        module: str = "",
        phase: str = "",
        stream: int = 0,
        by_generation: tuple[int, ...] = (),
    ) -> None:
        """An operator takes memory and gives it back before it returns."""
        self._event(WORKSPACE, len(self._workspaces))
        self._workspaces.append(Workspace(nbytes, operator, module, phase, stream, by_generation))

    def mark(self, phase: str, entered: bool, step: int = 0) -> None:
        """A phase of step `step` (from 0) is entered or left."""
        index = self._phases.setdefault(phase, len(self._phases))
        self._event(MARK, index, 2 * step + int(entered))

    def empty_cache(self) -> None:
        """`torch.cuda.empty_cache()` was called."""
        self._event(EMPTY_CACHE, 0)

    def run(self, run: OperatorRun) -> int:
        """An operator ran (its `at` is set here); returns the index that later runs name in `after`."""
        self._runs.append(run if run.at == len(self._kinds) else run._replace(at=len(self._kinds)))
        return len(self._runs) - 1

    def set_module(self, storage: int, module: str) -> None:
        """Assigns a storage to a module, where that is not the one it was made in."""
        self._storages[storage][_MODULE] = module

    def module(self, storage: int) -> str:
        """Returns the module of a storage so far."""
        module: str = self._storages[storage][_MODULE]
        return module

    def all_on_host(self) -> None:
        """Moves all storages so far to the host."""
        for row in self._storages:
            row[_PLACE] = "host"

    def set_category(self, storage: int, category: str) -> None:
        """Sets what a storage turned out to be, one of `CATEGORIES`."""
        self._storages[storage][_CATEGORY] = category

    def category(self, storage: int) -> str:
        """Returns the category of a storage so far."""
        category: str = self._storages[storage][_CATEGORY]
        return category

    def origin(self, storage: int) -> tuple[str, str]:
        """Returns the operator that made a storage, and the line; empty where nobody wrote one."""
        row = self._storages[storage]
        return row[_OPERATOR], row[_LINE]

    def build(self) -> Trace:
        """Returns the trace so far; the builder may go on. `InputError` for an unknown category."""
        storages = tuple(Storage(i, *row) for i, row in enumerate(self._storages))
        unknown = sorted({row.category for row in storages} - set(CATEGORIES))
        if unknown:
            raise InputError(f"category {unknown[0]!r} does not exist. Allowed: {', '.join(CATEGORIES)}.")
        return Trace(
            storages=storages,
            workspaces=tuple(self._workspaces),
            phases=tuple(self._phases),
            kinds=bytes(self._kinds),
            subjects=tuple(self._subjects),
            values=tuple(self._values),
            runs=tuple(self._runs),
            taken_apart=tuple(self.taken_apart),
        )
