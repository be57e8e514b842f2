"""Remembers what an operator does to fake tensors of given layouts, so that it is worked out only once.

Working out the result of an operator on fake tensors costs torch about 100 microseconds; a network repeats the same
operators on the same layouts in every block and every step. A plan holds what came out, as layouts: new tensors, views of
arguments, or arguments themselves. Following it costs about 10 microseconds.

An operator is left to torch every time when its result could depend on more than layouts, or when arguments share storage
in a way that makes the origin of a view ambiguous.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from snugfit.operators.kernels import InnerBytes
from snugfit.operators.operator_call import ALIGNMENT, BY_GRADIENT, extent
from snugfit.operators.operator_costs import OperatorCost
from snugfit.private_torch.fake_tensors import FAKES, FakeFactory, FakeTensor

_NEW, _VIEW, _ARGUMENT, _NOTHING, _VALUE = range(5)
_PLAIN = frozenset({int, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout})
_BY_OFFSET = frozenset({"as_strided", "as_strided_", "_reinterpret_tensor"})
_OTHER_DTYPE = (torch.ops.aten.view.dtype,)
"""Views whose offset is not their argument's and something more: it is given, or counts other elements."""
_UNREAD = {torch.ops.aten.select_backward.default: 3, torch.ops.aten.slice_backward.default: 3}
"""Operators -> how many arguments decide on layouts: where in the result the gradient is put does not."""
_BY_VALUE = ("upsample", "arange", "linspace", "logspace", "range", "interpolate")


class Output(NamedTuple):
    """How to make one result of an operator."""

    kind: int
    """New tensor, view of an argument, an argument itself, None, or a plain value."""
    argument: int = -1
    """Index into the tensors among the arguments."""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    """Of a view: from the argument's own offset on."""
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    value: Any = None


class OperatorPlan(NamedTuple):
    """What an operator does to arguments of given layouts."""

    name: str
    """The operator."""
    outputs: tuple[Output, ...]
    """Its results in order."""
    shape: type | None
    """list or tuple when it returns several, None for a single result."""
    cost: OperatorCost
    """What a run costs."""
    workspaces: tuple[InnerBytes, ...]
    """What it takes inside itself, in order."""
    order: tuple[int, ...]
    """Its new results by the order in which their memory is taken; empty where it is their own."""
    device: str
    """`device`, `host` (the CPU computes) or `link` (a copy between the two)."""
    blocking: bool
    """Whether the host waits for it."""
    seconds: float | None = None
    """How long a run takes on this machine's processor, called from Python; None where nobody asked."""
    by_lt: bool = False
    """Whether cuBLASLt multiplies on a card."""


class OperatorPlans:
    """The plans of one operator, by the layouts of its arguments."""

    __slots__ = ("_by_gradient", "_by_offset", "_by_value", "_unread", "knows", "plans")

    def __init__(self, operator: Any, *, knows: bool = False) -> None:
        """Finds out what a plan of this operator depends on besides layouts.

        `knows`: whether its results may carry on what is known of its arguments' values.
        """
        self.plans: dict[Any, OperatorPlan] = {}
        self.knows = knows
        self._by_gradient = operator in BY_GRADIENT
        self._by_value = any(part in operator._opname for part in _BY_VALUE)
        self._by_offset = operator.namespace != "aten" or operator._opname in _BY_OFFSET or operator in _OTHER_DTYPE
        self._unread = _UNREAD.get(operator, 1 << 30)

    def key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[torch.Tensor]] | None:
        """Returns the key of a plan, and the tensors among the arguments.

        A hashable key and the tensors in order; None where no plan can be made.
        """
        parts: list[Any] = []
        tensors: list[torch.Tensor] = []
        if not _add(parts, tensors, args if len(args) <= self._unread else args[: self._unread]):
            return None
        if kwargs:
            for name, value in kwargs.items():
                parts.append(name)
                if not _add(parts, tensors, (value,)):
                    return None
        if tensors and FAKES.isdisjoint(map(type, tensors)):
            return None
        if not tensors or self._by_value:
            parts.append(
                repr([a for a in (*args, *kwargs.values()) if type(a) in (float, list, tuple) and not _has_tensor(a)])
            )
        if self._by_offset:
            parts.extend([tensor.storage_offset() for tensor in tensors])
        if self._by_gradient:
            parts.append(torch.is_grad_enabled())
        return tuple(parts), tensors


def _has_tensor(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(part, torch.Tensor) for part in value)


def _add(parts: list[Any], tensors: list[torch.Tensor], values: Sequence[Any]) -> bool:
    for value in values:
        kind = type(value)
        if kind in FAKES:
            dtype = value.dtype
            if value.constant is not None or dtype.is_complex:
                return False
            tensors.append(value)
            parts += (value.shape, value.stride(), value.storage_offset() % ALIGNMENT, dtype, value.fake_device)
        elif kind in _PLAIN:
            parts += (kind, value)
        elif kind is float:
            parts.append(value if value.is_integer() or not math.isfinite(value) else float)  # 2-norm or maximum
        elif kind is list or kind is tuple:
            parts.append(len(value))
            if not _add(parts, tensors, value):
                return False
        elif kind is torch.Tensor and value.dim() == 0 and value.device.type == "cpu":
            tensors.append(value)
            parts.append(value.dtype)
        else:
            return False
    return True


def outputs_of(result: Any, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Output, ...], type | None] | None:
    """Returns how to make a result again from arguments of the same layouts.

    The outputs and the type that holds them; None where this cannot be said from layouts alone.
    """
    several = isinstance(result, list | tuple)
    storages: dict[int, int] = {}
    for i, tensor in enumerate(tensors):
        key = tensor.untyped_storage()._cdata
        # -1: several arguments share this storage, and a view of it could be one of any of them.
        storages[key] = i if key not in storages else -1
    outputs: list[Output] = []
    new: set[int] = set()
    for value in result if several else (result,):
        if isinstance(value, FakeTensor):
            if value.constant is not None or value.dtype.is_complex or value.layout is not torch.strided:
                return None
            same = next((i for i, tensor in enumerate(tensors) if tensor is value), None)
            key = value.untyped_storage()._cdata
            layout: Any = (tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.fake_device)
            if same is not None:
                outputs.append(Output(_ARGUMENT, same))
            elif key in storages:
                if storages[key] < 0:
                    return None
                index = storages[key]
                beyond = value.storage_offset() - tensors[index].storage_offset()
                outputs.append(Output(_VIEW, index, *layout)._replace(offset=int(beyond)))
            else:
                # Two results on one new storage, or a storage larger than its tensor: a layout alone does not say that.
                if key in new or value.untyped_storage().nbytes() != extent(*layout[:2]) * value.dtype.itemsize:
                    return None
                new.add(key)
                outputs.append(Output(_NEW, -1, *layout))
        elif value is None:
            outputs.append(Output(_NOTHING))
        elif type(value) in (int, bool):
            outputs.append(Output(_VALUE, value=value))
        else:
            return None
    return tuple(outputs), (type(result) if several else None)


def follow(plan: OperatorPlan, tensors: Sequence[torch.Tensor], factory: FakeFactory) -> tuple[Any, list[torch.Tensor]]:
    """Makes the results of a plan, for the tensors among an operator's arguments.

    Returns what the operator returns, and the results with a storage of their own.
    """
    results: list[Any] = []
    fresh: list[torch.Tensor] = []
    for kind, argument, shape, stride, offset, dtype, device, value in plan.outputs:
        if kind == _NEW:
            made = factory.empty(shape, stride, dtype, device)  # type: ignore[arg-type]
            fresh.append(made)
            results.append(made)
        elif kind == _VIEW:
            base = tensors[argument]
            results.append(factory.view(base, shape, stride, int(base.storage_offset()) + offset, dtype))  # type: ignore[arg-type]
        elif kind == _ARGUMENT:
            results.append(tensors[argument])
        elif kind == _NOTHING:
            results.append(None)
        else:
            results.append(value)
    if plan.shape is None:
        return results[0], fresh
    return (results if plan.shape is list else tuple(results)), fresh
