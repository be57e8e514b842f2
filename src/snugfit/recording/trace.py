"""What a recording is: every storage of a run with its birth and death, and every operator, in order.

A trace is made once by the recorder and replayed often: without a limit, at each card's size, by the clock and the
anatomy. So it is compact (parallel columns, tuples of ints, one row for each storage), immutable, and made of ints and
strings only. It knows nothing of any allocator: sizes are the bytes that were
asked for, and how they are rounded and placed is the replay's business.

`TraceBuilder` is the only way to make one. A storage's category may be decided late (a tensor becomes a gradient
when it is accumulated, a temporary becomes an activation when it is saved), any time before `build`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from snugfit.errors import InputError
from snugfit.recording.multi_tensor import TensorLists

Place = Literal["device", "host"]
CATEGORIES = ("weights", "gradients", "optimizer_state", "activations", "temporaries", "inputs", "other")

ALLOC, FREE, RESIZE, WORKSPACE, MARK, EMPTY_CACHE = range(6)
"""Kinds of events: the first of the three columns. What subject and value mean is said at `Trace`."""
"""Who calls an operator."""


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


class Convolution(NamedTuple):
    """The shape of a convolution for the clock; a transposed one is an ordinary one the other way round."""

    samples: int
    """Images of the batch."""
    inputs: int
    """Channels of the input."""
    outputs: int
    """Channels of the output."""
    groups: int
    """Groups that channels are divided into."""
    taps: int
    """Elements of the kernel's window, such as 9 for 3 x 3."""
    pixels: int
    """Positions of an input image."""
    positions: int
    """Positions of an output image."""
    stride: int
    """Product of the strides."""
    gradients: int
    """0: the forward pass. 1: the gradient of the input. 2: that of the weights. 3: both."""
    channels_last: bool
    """Whether the channels of a pixel lie side by side."""


class Collective(NamedTuple):
    """What ranks send each other in one operator, for the clock."""

    kind: str
    """`all_gather`, `reduce_scatter`, `all_reduce`, `broadcast`, `reduce`, `all_to_all`, `gather`, `scatter` or `send`."""
    nbytes: int
    """Bytes of the whole tensor: what is gathered, what is there before it is scattered, a rank's own otherwise."""
    ranks: int
    """Ranks of the group."""
    machines: int
    """Machines that they are in."""


class OperatorRun(NamedTuple):
    """One operator as the clock sees it."""

    operator: str
    """Its name, such as `aten.mm.default`."""
    module: str
    """Dotted path of the module in which it ran."""
    phase: str
    """The phase in which it ran."""
    flops: int
    """Floating-point operations; 0 for data movement."""
    read_bytes: int
    """Bytes read from memory (or sent, for `link`)."""
    written_bytes: int
    """Bytes written to memory."""
    dtype: str
    """What it computes in: `float32`, `tf32`, `float16`, `bfloat16`, `float64`, `int64` and so on."""
    kernels: int
    """Kernels launched; 0 for one that only makes a view."""
    device: str
    """`device`, `host` (computed by the CPU), `link` (a copy between the two) or `ranks` (a collective)."""
    stream: int = 0
    """The stream it runs on."""
    product: tuple[int, int, int, int] | tuple[()] = ()
    """For a matrix product: batch, rows, columns and inner size; empty for everything else."""
    after: tuple[int, ...] = ()
    """Indices of earlier runs that must have ended first (waits for events of other streams)."""
    blocking: bool = False
    """Whether the host waits for its end (`.item()`, a size that values decide, a copy from or to pageable memory)."""
    at: int = 0
    """How many events of the trace came before it."""
    convolution: Convolution | tuple[()] = ()
    """For a convolution: its shape; empty for everything else."""
    again_bytes: int = 0
    """Bytes that a card's kernels move more than once, or for nothing."""
    blocks: int = 0
    """Blocks of threads, where they may be fewer than the card's SMs; 0: enough."""
    rows: int = 0
    """Rows that a layer norm works off one by one; each row of a backward pass counts three times."""
    uneven: tuple[int, ...] = ()
    """Lengths of those rows of a matrix product's factors that do not begin at multiples of 16 bytes, in elements."""
    seconds: float | None = None
    """What it takes on the processor that was asked, called from Python; None where none was."""
    collective: Collective | tuple[()] = ()
    """For a collective: what is sent; empty for everything else."""
    line: str = ""
    """For one that the host waits for: `file:line` of a person's code that asked for it; empty where snugfit's own did."""
    lists: TensorLists | tuple[()] = ()
    """For an operator on lists of tensors: how many there are; empty for everything else."""

    @property
    def aligned(self) -> bool:
        """Whether the rows of a matrix product's factors start at multiples of 16 bytes."""
        return not self.uneven


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

    def step_events(self, step: int | None = None) -> tuple[int, int]:
        """Returns the events of a step (None: the last), from its first mark to the next step's first.

        Index of its first mark, -1 for a trace without marks; and of the mark behind it, or the number of events.
        """
        marks = self.marks()
        if not marks:
            return -1, len(self)
        wanted = max(mark.step for mark in marks) if step is None else step
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


_PLACE, _CATEGORY, _MODULE = 1, 2, 3
"""Positions in a recorded row (a `Storage` without its id) of what may still change."""


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
