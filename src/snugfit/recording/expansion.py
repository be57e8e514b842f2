"""The recording of a deep model from those of two shallow ones that differ by one of its equal blocks.

A trace is one line of tokens, its events and operators in order; `alike_stretches.py` says how that line grows with each
block. What is written here is what a token of a trace is: which of its fields make it what it is, which belong to its block
(the module's path), and which may grow because they sum over all blocks. Those are the lists of an optimizer and of the norm
of all gradients: their bytes grow evenly, and their kernels are counted anew. An operator outside of the blocks that grows
with them and is no such list is refused, as everything is that follows no rule; the caller then records the whole model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from snugfit.recording.alike_stretches import NO_BLOCK, Line, Pattern
from snugfit.recording.multi_tensor import TensorLists
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.repeated_regions import NotAlike
from snugfit.recording.trace import ALLOC, EMPTY_CACHE, FREE, RESIZE, WORKSPACE, Repeat, Storage, Trace, Workspace

_RUN = EMPTY_CACHE + 1
_LISTS = ("aten._foreach_", "aten._fused_")
_SUMS = (
    "aten.stack.default",
    "aten.cat.default",
    "aten.linalg_vector_norm.default",
    "aten._amp_foreach_non_finite_check_and_unscale_.default",
)
_GROWING = ("flops", "read_bytes", "written_bytes", "again_bytes")
_MODULE_OF_STORAGE = Storage._fields.index("module")
_MODULE_OF_RUN, _AFTER, _AT = map(OperatorRun._fields.index, ("module", "after", "at"))
_COUNTED = tuple(map(OperatorRun._fields.index, (*_GROWING, "kernels", "lists")))
_OF_PLACE = frozenset(map(OperatorRun._fields.index, ("module", "after", "at", "stream")))
"""Fields of an operator that say where it stands, and not what it is."""
_OF_PLACE_AND_SUMS = _OF_PLACE.union(_COUNTED)


class _Tokens:
    """A trace as a line of tokens."""

    def __init__(self, trace: Trace, blocks: Sequence[str], known: dict[Any, int]) -> None:
        self.trace = trace
        self._numbers = {name: number for number, name in enumerate(blocks)}
        self._within: dict[str, tuple[int, str]] = {}
        self.rows: list[tuple[int, Any]] = []
        """Kind of each token; and its row: of a storage, a workspace or an operator, or the event's subject and value."""
        self.runs: list[int] = []
        """The token of each operator, and where the line ends."""
        self._signs: list[int] = []
        self._labels: list[int] = []
        self._references: list[tuple[int, ...]] = []
        self._known = known
        self._streams: dict[int, int] = {}
        self._read()
        self.line = Line(self._signs, self._labels, self._references)

    def within(self, module: str) -> tuple[int, str]:
        """The block that a module lies in, and its path from there; `NO_BLOCK` and the whole path outside of all."""
        found = self._within.get(module)
        if found is None:
            found = NO_BLOCK, module
            end = len(module)
            while end > 0:
                number = self._numbers.get(module[:end])
                if number is not None:
                    found = number, module[end:]
                end = module.rfind(".", 0, end)
            self._within[module] = found
        return found

    def bounds(self) -> set[int]:
        """Returns the tokens of the operators that repeated stretches begin with, and of those behind them."""
        return {self.runs[run] for repeat in self.trace.repeats for run in repeat[:2]}

    def _read(self) -> None:
        sign: tuple[Any, ...]
        trace = self.trace
        births: dict[int, int] = {}
        runs = iter(trace.runs)
        run = next(runs, None)
        for event in range(len(trace) + 1):
            while run is not None and run.at == event:
                label, inside = self.within(run.module)
                left_out = _OF_PLACE_AND_SUMS if label == NO_BLOCK and _sums(run) else _OF_PLACE
                shape = [value for at, value in enumerate(run) if at not in left_out]
                shape += (self._stream(run.stream), len(run.after))
                references = tuple(self.runs[other] for other in run.after)
                self.runs.append(len(self.rows))
                self._add(_RUN, run, (_RUN, label == NO_BLOCK, inside, *shape), label, references)
                run = next(runs, None)
            if event == len(trace):
                self.runs.append(len(self.rows))
                return
            kind, subject, value = trace.kinds[event], trace.subjects[event], trace.values[event]
            if kind == ALLOC:
                row = trace.storages[subject]
                births[subject] = len(self.rows)
                label, inside = self.within(row.module)
                size = None if label == NO_BLOCK and row.operator in _SUMS else row.nbytes
                made = row.operator, row.phase, self._stream(row.stream)
                sign = (ALLOC, label == NO_BLOCK, inside, size, row.place, row.category, *made)
                self._add(ALLOC, row, sign, label)
            elif kind in (FREE, RESIZE):
                born = births[subject]
                sign = (kind, self._signs[born], value)
                self._add(kind, value, sign, NO_BLOCK, (born,))
            elif kind == WORKSPACE:
                work = trace.workspaces[subject]
                label, inside = self.within(work.module)
                taken = work.nbytes, work.by_generation, work.operator, work.phase, self._stream(work.stream)
                sign = (WORKSPACE, label == NO_BLOCK, inside, *taken)
                self._add(WORKSPACE, work, sign, label)
            else:
                self._add(kind, (subject, value), (kind, subject, value), NO_BLOCK)

    def _stream(self, stream: int) -> int:
        """Number of a stream in this trace: torch numbers them over all runs of a process."""
        return self._streams.setdefault(stream, len(self._streams))

    def _add(self, kind: int, row: Any, sign: Any, label: int, references: tuple[int, ...] = ()) -> None:
        self.rows.append((kind, row))
        self._signs.append(self._known.setdefault(sign, len(self._known)))
        self._labels.append(label)
        self._references.append(references)


def _sums(run: OperatorRun) -> bool:
    """Whether an operator may work on more tensors where there are more blocks; a list of one is of one tensor's update."""
    alone = isinstance(run.lists, TensorLists) and run.lists.tensors == 1
    return run.operator in _SUMS or (run.operator.startswith(_LISTS) and not alone)


class Expansion:
    """Two recordings of the same run, by models with one equal block more or less."""

    def __init__(self, shorter: Trace, longer: Trace, of_shorter: Sequence[str], of_longer: Sequence[str]) -> None:
        """Compares them; `NotAlike` where one does not follow from the other.

        `of_shorter`, `of_longer`: paths of the blocks, and of all that stands in one line with them.
        """
        if shorter.phases != longer.phases:
            raise NotAlike("they go through other phases")
        known: dict[Any, int] = {}
        self._short, self._long = _Tokens(shorter, of_shorter, known), _Tokens(longer, of_longer, known)
        self._pattern = Pattern(self._short.line, self._long.line)
        rows = self._long.rows
        for column in self._pattern.columns():
            kind, first = rows[column[0]]
            if kind == _RUN and any(_counts(rows[at][1]) != _counts(first) for at in column):
                raise NotAlike("an operator of the blocks grows from one to the next")
            if kind == ALLOC and any(rows[at][1].nbytes != first.nbytes for at in column):
                raise NotAlike("a tensor of the blocks grows from one to the next")
        self._grown = {
            long: (self._short.rows[short][1], rows[long][1])
            for short, long in self._pattern.outside
            if rows[long][0] in (ALLOC, _RUN) and _differs(*rows[long], self._short.rows[short][1])
        }
        self._apart = self._taken_apart()
        self._bounds = self._long.bounds()
        # In the first of alike stretches they keep their place; in a later one nobody knows which of them it would be.
        inside = {place for column in self._pattern.columns() for place in column}
        bounds = self._short.bounds()
        first = {long for short, long in self._pattern.beginnings() if short in bounds}
        times = [[one.times for one in trace.repeats] for trace in (shorter, longer)]
        if (inside & self._bounds) - first or times[0] != times[1]:
            raise NotAlike("microbatches repeat otherwise")

    def _taken_apart(self) -> Pattern:
        lines, known = [], dict[Any, int]()
        for tokens in (self._short, self._long):
            places = [(operator, *tokens.within(module)) for operator, module in tokens.trace.taken_apart]
            signs = [
                known.setdefault((operator, label == NO_BLOCK, inside), len(known))
                for operator, label, inside in places
            ]
            lines.append(Line(signs, [label for _, label, _ in places], [()] * len(places)))
        return Pattern(*lines)

    def trace(self, blocks: Sequence[str]) -> Trace:
        """Returns the recording of a model with these blocks, `of_longer` with more in the middle of them."""
        long = self._long
        more = len(blocks) - len(long._numbers)
        storages: list[Storage] = []
        workspaces: list[Workspace] = []
        runs: list[OperatorRun] = []
        kinds, subjects, values = bytearray(), list[int](), list[int]()
        ids: list[int] = []
        bounds: dict[int, int] = {}
        grown = {at: _grown(*pair, more) for at, pair in self._grown.items()}
        paths = _Paths(long, blocks)
        for at, label, targets in self._pattern.expanded(more):
            kind, row = long.rows[at]
            if kind == _RUN:
                if at in self._bounds:
                    bounds.setdefault(at, len(runs))
                row = grown.get(at, row)
                ids.append(len(runs))
                runs.append(
                    OperatorRun._make(
                        (
                            row[0],
                            paths.of(row.module, label),
                            *row[2:_AFTER],
                            tuple(ids[target] for target in targets),
                            row[_AFTER + 1],
                            len(kinds),
                            *row[_AT + 1 :],
                        )
                    )
                )
                continue
            value = 0
            if kind == ALLOC:
                row = grown.get(at, row)
                subject = len(storages)
                storages.append(
                    Storage._make((subject, *row[1:_MODULE_OF_STORAGE], paths.of(row.module, label), *row[5:]))
                )
            elif kind in (FREE, RESIZE):
                subject, value = ids[targets[0]], row
            elif kind == WORKSPACE:
                subject = len(workspaces)
                workspaces.append(row._replace(module=paths.of(row.module, label)))
            else:
                subject, value = row
            ids.append(subject)
            kinds.append(kind)
            subjects.append(subject)
            values.append(value)
        bounds.setdefault(len(long.rows), len(runs))
        return Trace(
            storages=tuple(storages),
            workspaces=tuple(workspaces),
            phases=long.trace.phases,
            kinds=bytes(kinds),
            subjects=tuple(subjects),
            values=tuple(values),
            runs=tuple(runs),
            repeats=tuple(
                Repeat(bounds[long.runs[one.first_run]], bounds[long.runs[one.last_run]], one.times)
                for one in long.trace.repeats
            ),
            taken_apart=tuple(
                (long.trace.taken_apart[at][0], paths.of(long.trace.taken_apart[at][1], label))
                for at, label, _ in self._apart.expanded(more)
            ),
        )


class _Paths:
    """Paths of modules in the model with all blocks."""

    def __init__(self, tokens: _Tokens, blocks: Sequence[str]) -> None:
        self._tokens, self._blocks = tokens, blocks
        self._known: dict[tuple[str, int], str] = {}

    def of(self, module: str, label: int) -> str:
        """The path of a module like this one, in another block."""
        if label == NO_BLOCK:
            return module
        found = self._known.get((module, label))
        if found is None:
            found = self._known[module, label] = self._blocks[label] + self._tokens.within(module)[1]
        return found


def _counts(run: OperatorRun) -> tuple[Any, ...]:
    return tuple(run[at] for at in _COUNTED)


def _differs(kind: int, long: Any, short: Any) -> bool:
    return bool(long.nbytes != short.nbytes if kind == ALLOC else _counts(long) != _counts(short))


def _grown(short: Any, long: Any, more: int) -> Any:
    """A row outside of the blocks that sums over them, with more of them."""
    if isinstance(long, Storage):
        return long._replace(nbytes=long.nbytes + more * (long.nbytes - short.nbytes))
    even = {name: getattr(long, name) + more * (getattr(long, name) - getattr(short, name)) for name in _GROWING}
    lists: TensorLists | tuple[()] = ()
    kernels = long.kernels
    if isinstance(long.lists, TensorLists) and isinstance(short.lists, TensorLists):
        if long.lists.lists != short.lists.lists:
            raise NotAlike("an operator takes more lists")
        tensors = long.lists.tensors + more * (long.lists.tensors - short.lists.tensors)
        chunks = long.lists.chunks + more * (long.lists.chunks - short.lists.chunks)
        lists = TensorLists(tensors, chunks, long.lists.lists)
        kernels = lists.launches
    elif long.kernels != short.kernels or long.lists != short.lists:
        raise NotAlike("an operator launches more kernels")
    return long._replace(**even, kernels=kernels, lists=lists)
