"""The operators of a training step as they were called, kept in a file, so that a new clock is tried on all at once.

What is kept are names, layouts and plain arguments; costs are worked out anew each time (`runs`), by the code as it is.
"""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from snugfit.fake_device.personality import Personality
from snugfit.operators.operator_costs import OperatorCost, cost_of
from snugfit.recorder import fake_calls, registration
from snugfit.recording.clock import runs_of_step
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.trace import Trace
from snugfit.simulator.own_step import record_step


class Call(NamedTuple):
    """One operator as it was called; tensors are `Layout`s."""

    operator: str
    args: Any
    kwargs: Any
    result: Any
    written: Any


class Layout(NamedTuple):
    """What is kept of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        count = int(torch.Size(self.shape).numel())
        return count * int(getattr(torch, self.dtype).itemsize)


class Calls(NamedTuple):
    """The last step of a recording."""

    calls: dict[int, Call]
    """Number -> a call; equal ones are kept once."""
    runs: list[tuple[OperatorRun, int]]
    """What the recorder took down, in order, and the number of the call."""
    taken_apart: tuple[tuple[str, str], ...]
    """Operators that were recorded in parts, with their modules."""


_numbers: dict[Call, int] = {}
_by_number: list[Call] = []


def _kept(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Layout(str(value.dtype).removeprefix("torch."), tuple(value.shape), tuple(value.stride()))
    if isinstance(value, list | tuple):
        return tuple(map(_kept, value))
    return value if isinstance(value, int | float | bool | str | None) else str(value)


def _numbered_cost(operator: Any, args: Any, kwargs: Any, result: Any, written: Any) -> OperatorCost:
    """Works a cost out and puts the call's number in the place of `again_bytes`, by which it comes back in the runs."""
    call = Call(str(operator), _kept(args), _kept(list(kwargs.items())), _kept(result), _kept(written))
    number = _numbers.setdefault(call, len(_by_number))
    if number == len(_by_number):
        _by_number.append(call)
    return cost_of(operator, args, kwargs, result, written)._replace(again_bytes=number)


def record(step: Callable[..., Any], model: Any, optimizer: Any, batch: Any, personality: Personality) -> Calls:
    """Records one call of a training step, in this process: registers the fake device for good.

    Args:
        step: Function of (model, optimizer, batch).
        model: A function without arguments that builds the model.
        optimizer: A function from parameters to an optimizer.
        batch: What the step takes.
        personality: The kind of card.
    """
    if fake_calls.cost_of is not _numbered_cost:
        registration.register()
        fake_calls.cost_of = _numbered_cost
    trace = record_step(step, model, optimizer, batch, {}, personality, on_host=False, steps=1).trace
    indices = list(runs_of_step(trace))
    moved = {index: place for place, index in enumerate(indices)}
    runs = []
    for index in indices:
        run = trace.runs[index]
        after = tuple(moved[other] for other in run.after if other in moved)
        runs.append((run._replace(after=after, at=0), run.again_bytes))
    return Calls({number: _by_number[number] for _, number in runs}, runs, trace.taken_apart)


def save(path: Path, calls: Calls) -> None:
    """Writes calls to a file."""
    plain = ({number: tuple(call) for number, call in calls.calls.items()}, [(tuple(run), n) for run, n in calls.runs])
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb", compresslevel=3) as file:
        pickle.dump((*plain, calls.taken_apart), file)


def load(path: Path) -> Calls:
    """Reads calls from a file of this program's own."""
    with gzip.open(path, "rb") as file:
        calls, runs, taken_apart = pickle.load(file)
    fields = [OperatorRun._field_defaults.get(name) for name in OperatorRun._fields]
    return Calls(
        {number: Call._make(call) for number, call in calls.items()},
        [(OperatorRun._make((*run, *fields[len(run) :])), number) for run, number in runs],
        taken_apart,
    )


def runs(calls: Calls) -> list[tuple[OperatorRun, Call]]:
    """Returns the operators with their costs as today's code works them out, each with its call."""
    costs = {number: _cost(call) for number, call in calls.calls.items()}
    found = []
    for run, number in calls.runs:
        cost = costs[number]
        dtype = run.dtype if run.dtype == "tf32" else cost.dtype
        found.append((run._replace(**cost._replace(dtype=dtype)._asdict()), calls.calls[number]))
    return found


def trace_of(runs: list[OperatorRun]) -> Trace:
    """Returns operators as a recording that knows nothing of memory."""
    return Trace(storages=(), workspaces=(), phases=(), kinds=b"", subjects=(), values=(), runs=tuple(runs))


_costs: dict[Call, OperatorCost] = {}


def _cost(call: Call) -> OperatorCost:
    if call not in _costs:
        namespace, name, overload = call.operator.split(".")
        operator = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        keywords = {name: _tensors(value) for name, value in call.kwargs}
        _costs[call] = cost_of(operator, _tensors(call.args), keywords, _tensors(call.result), _tensors(call.written))
    return _costs[call]


def _tensors(value: Any) -> Any:
    if isinstance(value, Layout):
        return torch.empty_strided(value.shape, value.stride, dtype=getattr(torch, value.dtype), device="meta")
    return [_tensors(one) for one in value] if isinstance(value, tuple) else value
