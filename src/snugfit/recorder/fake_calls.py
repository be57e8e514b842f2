"""Runs operators on fake tensors where nothing is known of their layouts yet, and says what they make and cost.

Small host tensors that Python code makes (a step count, an index list) are real, so their values stay true. An operator
whose size depends on values takes it from what may be assumed; one whose fake version refuses what the real one takes is
asked of the machine, in a run on cpu. What comes out is taken down and remembered by the recorder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from snugfit.fake_device.personality import DEVICE_TYPE
from snugfit.operators import cpu_operators, kernels
from snugfit.operators.operator_costs import OperatorCost, cost_of
from snugfit.operators.operator_truth import Result
from snugfit.private_torch import dispatcher, fake_tensors
from snugfit.private_torch.fake_tensors import FAKES, FakeFactory
from snugfit.recorder.dispatch_plan import OperatorPlan
from snugfit.recording.generations import CardQuestions
from snugfit.techniques.batches import tensors_in
from snugfit.values import fake_failure
from snugfit.values.chance import SOURCES
from snugfit.values.read_values import ReadValues

REAL_ELEMENTS = 1024
"""Host tensors up to this size that Python code makes from values stay real."""
LIFT = torch.ops.aten.lift_fresh.default
"""What `torch.tensor(...)` ends with: its result is made below all modes."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_index = torch.ops.aten.index.Tensor
_PUTS = (torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default)
_copy = torch.ops.aten.copy_.default
_to_copy = torch.ops.aten._to_copy.default


class FakeCall(NamedTuple):
    """An operator that was run, and what it made."""

    args: Sequence[Any]
    """Its positional arguments, fake ones in the place of large real ones."""
    kwargs: dict[str, Any]
    """Its keyword arguments."""
    result: Any
    """What it returned."""
    by_values: bool = False
    """Whether that holds for these values alone."""


class FakeCalls:
    """Runs the operators of one recording."""

    def __init__(self, factory: FakeFactory, values: ReadValues, card: CardQuestions, *, cuda: bool) -> None:
        self.operators: cpu_operators.CpuOperators | None = None
        """Answers of this machine, in a run on cpu."""
        self._factory, self._values, self._card, self._cuda = factory, values, card, cuda

    def run(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor], module: str
    ) -> FakeCall:
        """Runs an operator; `tensors` are those among its arguments."""
        draws = func in SOURCES and not func._schema.is_mutable  # what it draws is for `chance.py` to say
        if not draws and _all_real(tensors, kwargs):
            return FakeCall(args, kwargs, func(*args, **kwargs), by_values=torch.Tag.dynamic_output_shape in func.tags)
        make = self._values.sizes.sized(func, args, kwargs, module)
        if make is not None:
            device = args[0].device
            sized = make(
                lambda shape, dtype: self._factory.wrap(torch.empty(shape, dtype=dtype, device="meta"), device)
            )
            return FakeCall(args, kwargs, sized, by_values=True)
        if tensors and all(type(t) in _PLAIN and t.device.type == "cpu" for t in tensors):
            args, kwargs = self._fakes(args), {name: self._fakes(value) for name, value in kwargs.items()}
        try:
            result = fake_tensors.viewed(self._factory, func, args, kwargs)
            if result is None:
                with self._factory.mode:
                    result = func(*args, **kwargs)
        except Exception as error:
            problem = fake_failure.explain(error, str(func), module)
            if problem is not None:
                raise problem from error
            result = self._as_the_machine_does(func, args, kwargs)
            if result is None:
                raise
        fake_tensors.forget_conversions(self._factory.mode)
        if func is LIFT and self._cuda and type(result) in FAKES and result.device.type == DEVICE_TYPE:
            # Made of values below all modes, it has no bytes yet; and torch would compute with values that are not here.
            result = self._factory.empty(result.shape, result.stride(), result.dtype, result.device)
        return FakeCall(args, kwargs, result)

    def _fakes(self, value: Any) -> Any:
        """Returns arguments with fake tensors in place of real host tensors."""
        if isinstance(value, torch.Tensor):
            return self._factory.empty(value.shape, value.stride(), value.dtype, value.device)
        return type(value)(map(self._fakes, value)) if isinstance(value, list | tuple) else value

    def _as_the_machine_does(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Returns results as the machine makes them where the fake version refuses; None where the machine does, too."""
        results = None if self.operators is None else self.operators.results_of(func, args, kwargs)
        if results is None:
            return None
        made: dict[int, torch.Tensor] = {}
        for number, layout in enumerate(results):
            made[number] = self._tensor(layout, made)
        return made[0] if len(made) == 1 else tuple(made.values())

    def _tensor(self, layout: Result, others: dict[int, torch.Tensor]) -> torch.Tensor:
        """Returns a fake tensor in the layout that the machine gave."""
        if layout.shares >= 0:
            return self._factory.view(others[layout.shares], layout.shape, layout.stride, 0, layout.dtype)
        made = self._factory.empty(layout.shape, layout.stride, layout.dtype, torch.device("cpu"))
        if made.untyped_storage().nbytes() != layout.nbytes:
            made.untyped_storage().resize_(layout.nbytes)
        return made

    def plan(
        self, func: Any, call: FakeCall, tensors: Sequence[torch.Tensor], fresh: Sequence[torch.Tensor]
    ) -> tuple[OperatorPlan, Any, list[torch.Tensor]]:
        """Returns the cost of a run as a plan, and its results as the device really lays them out."""
        args, kwargs, result, by_values = call
        # A number on the host is an argument of a kernel, unless it is what is copied.
        moves = func is _copy or func is _to_copy
        devices = {t.device.type for t in (*tensors, *fresh) if moves or t.dim() or t.device.type != "cpu"}
        link = self._cuda and devices == {"cpu", DEVICE_TYPE}
        on_host = self._cuda and DEVICE_TYPE not in devices
        waits = not (kwargs.get("non_blocking") or (func is _copy and len(args) > 2 and args[2]))
        cost = cost_of(func, args, kwargs, result, [*fresh, *written_by(func, args, kwargs)])
        inner = cpu_operators.NOTHING
        if self.operators is not None and cost.kernels:
            inner = self.operators.ask(func, args, kwargs, fresh, cost)
            if by_values:  # of its own values: results of another size, in another time
                inner = cpu_operators.NOTHING._replace(spaces=inner.spaces)
        elif self._cuda and not on_host:
            inner = inner._replace(spaces=kernels.workspaces(str(func), args, kwargs, self._card.own))
        if inner.corrected:
            made = dict(enumerate(fresh))
            for number, real in inner.corrected:
                made[number] = self._tensor(real, made)
            fresh = list(made.values())
            known = {tensor.untyped_storage()._cdata for tensor in tensors}
            result = _replaced(result, known, iter(fresh))
        plan = OperatorPlan(
            name=str(func),
            outputs=(),
            shape=None,
            cost=cost,
            workspaces=inner.spaces,
            order=inner.order,
            device="link" if link else "host" if on_host else "device",
            # A size that values decide is read by the host before it can go on.
            blocking=(link and waits) or (by_values and self._cuda and not on_host),
            seconds=inner.seconds,
            by_lt=self._cuda and kernels.multiplies_by_lt(str(func), args, kwargs),
        )
        return plan, result, list(fresh)


def number_read(tensor: torch.Tensor) -> OperatorPlan:
    """Returns the run for reading a number from a card: a copy that the host waits for, behind all work before it."""
    kind = str(tensor.dtype).removeprefix("torch.")
    cost = OperatorCost(flops=0, read_bytes=tensor.element_size(), written_bytes=0, dtype=kind, kernels=1, product=())
    name = str(torch.ops.aten._local_scalar_dense.default)
    return OperatorPlan(name, (), None, cost, workspaces=(), order=(), device="link", blocking=True)


def is_mask(index: Any) -> bool:
    """Returns whether an index is a mask (true and false), not a list of positions."""
    return type(index) in FAKES and index.dtype in (torch.bool, torch.uint8)


def selects_by_masks(func: Any, args: Sequence[Any]) -> bool:
    """Returns whether an operator selects by masks. Writing one number where a mask is true selects nothing."""
    selects = func is _index or (func in _PUTS and args[2].numel() > 1)
    return selects and any(map(is_mask, args[1]))


def written_by(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Returns the arguments that an operator writes to."""
    places = dispatcher.places_written(func)
    return tensors_in(args[i] if i < len(args) else kwargs.get(name) for i, name in places) if places else []


def _all_real(tensors: Sequence[torch.Tensor], kwargs: dict[str, Any]) -> bool:
    """Whether an operator works on small real host tensors alone, so that its values stay true."""
    return (
        bool(tensors)
        and kwargs.get("device") in (None, torch.device("cpu"))
        and all(type(t) not in FAKES and t.device.type == "cpu" and t.numel() <= REAL_ELEMENTS for t in tensors)
    )


def _replaced(value: Any, known: set[int], made: Iterator[torch.Tensor]) -> Any:
    """Returns an operator's result with its new tensors replaced, in order."""
    if isinstance(value, torch.Tensor):
        return value if value.untyped_storage()._cdata in known else next(made)
    return type(value)(_replaced(part, known, made) for part in value) if isinstance(value, list | tuple) else value
