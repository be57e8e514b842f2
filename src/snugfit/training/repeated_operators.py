"""Running an update's operators a second time, without the changes that were made the first time.

One dispatch mode sees every operator: it leaves out the writes to weight and state that are made already, runs the others,
and follows what was computed from a tensor that has moved on, so that nothing of that is ever written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from snugfit.private_torch import TorchDispatchMode


class ReadTooLate(RuntimeError):
    """A value that is needed was there when the update first ran, and has changed since."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Takes what was read.

        Args:
            tensors: The weights and state that have changed; empty where nobody can tell.
        """
        super().__init__("the update reads what it has changed already")
        self.tensors = list(tensors)


class Watch(TorchDispatchMode):
    """Sees every operator of one parameter's update: what it reads, and what it writes of weight and state."""

    def __init__(self, tracked: dict[int, Tensor]) -> None:
        """Begins at the first operator.

        Args:
            tracked: Weight and state, by id.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracked = tracked
        self.storages = {tensor.untyped_storage()._cdata for tensor in tracked.values()}
        self.seen = dict.fromkeys(tracked, 0)
        self.doubtful = WeakIdKeyDictionary()
        self.late: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator, or leaves it out."""
        kwargs = kwargs or {}
        written, read = _written_and_read(func, args, kwargs)
        targets = [tensor for tensor in written if id(tensor) in self.tracked]
        if len(targets) < len(written) and any(
            id(tensor) not in self.tracked and tensor.untyped_storage()._cdata in self.storages for tensor in written
        ):
            raise ReadTooLate([])  # a write through a view, which is not counted
        if targets and self.leaves_out(func, args, targets):
            for tensor in targets:
                self.seen[id(tensor)] += 1
            return None if not func._schema.returns else args[0]
        doubt = self.doubts(read) or self.doubts(written)
        if doubt and targets:
            raise ReadTooLate(self.late)
        result = func(*args, **kwargs)
        for tensor in targets:
            self.wrote(tensor)
        if doubt:
            for tensor in (*written, *_flat(result)):
                self.doubtful[tensor] = True
            if not isinstance(result, Tensor | tuple | list) and result is not None:
                self.everything_doubtful()
        return result

    def leaves_out(self, func: Any, args: Any, targets: list[Tensor]) -> bool:
        """Returns whether a write to weight or state is not made."""
        raise NotImplementedError

    def doubts(self, tensors: Sequence[Tensor]) -> bool:
        """Returns whether one of the tensors is not what it was at this place of the first run."""
        return any(tensor in self.doubtful for tensor in tensors)

    def wrote(self, tensor: Tensor) -> None:
        """Takes note of a write that was made."""
        self.seen[id(tensor)] += 1

    def everything_doubtful(self) -> None:
        """A number was read off a doubtful tensor, and numbers cannot be followed."""


class Continued(Watch):  # type: ignore[no-untyped-call]
    """Leaves out the changes that were made already."""

    def __init__(self, tracked: dict[int, Tensor], made: dict[int, int]) -> None:
        """Begins at the first operator.

        Args:
            tracked: Weight and state, by id.
            made: How often each was changed already; counted up.
        """
        super().__init__(tracked)
        self._made = made
        self._numbers = False

    def leaves_out(self, func: Any, args: Any, targets: list[Tensor]) -> bool:
        """Returns whether the change was made already."""
        done = {self.seen[id(tensor)] < self._made[id(tensor)] for tensor in targets}
        if len(done) > 1:
            raise ReadTooLate([])
        return done == {True}

    def doubts(self, tensors: Sequence[Tensor]) -> bool:
        """Returns whether one of the tensors has moved on, or depends on one that has."""
        late = [
            tensor
            for tensor in tensors
            if id(tensor) in self.tracked and self.seen[id(tensor)] < self._made[id(tensor)]
        ]
        self.late += [tensor for tensor in late if not any(tensor is known for known in self.late)]
        return bool(late) or self._numbers or super().doubts(tensors)

    def wrote(self, tensor: Tensor) -> None:
        """Takes note of a write that was made now."""
        super().wrote(tensor)
        self._made[id(tensor)] += 1

    def everything_doubtful(self) -> None:
        """Any number may come from what was read too late."""
        self._numbers = True


class Listener(Watch):  # type: ignore[no-untyped-call]
    """Makes no change, and notes what the changes would be."""

    def __init__(self, tracked: dict[int, Tensor]) -> None:
        """Begins at the first operator.

        Args:
            tracked: Weight and state, by id.
        """
        super().__init__(tracked)
        self._writes: dict[int, list[tuple[Any, Any]]] = {key: [] for key in tracked}

    def leaves_out(self, func: Any, args: Any, targets: list[Tensor]) -> bool:
        """Notes the change, and leaves it out."""
        for tensor in targets:
            self._writes[id(tensor)].append((func, args))
        return True

    def take_back(self, tensor: Tensor, count: int) -> bool:
        """Takes back the first changes of a tensor, if all of them only scaled it.

        Args:
            tensor: A weight or state.
            count: How many were made.

        Returns:
            Whether they are taken back; the tensor is then what it was, up to rounding.
        """
        writes = self._writes[id(tensor)][:count]
        factors = [_factor(func, args) for func, args in writes]
        known = [factor for factor in factors if factor is not None]
        if len(known) < len(factors):
            return False
        with torch.no_grad():
            for factor in reversed(known):
                tensor.div_(factor)
        return True


_SCALINGS = (torch.ops.aten.mul_.Tensor, torch.ops.aten.mul_.Scalar, torch.ops.aten._foreach_mul_.Scalar)


def _factor(func: Any, args: Any) -> float | None:
    """The number that an operator multiplies its first argument with, or None where it does something else."""
    number = args[1] if func in _SCALINGS else None
    return float(number) if isinstance(number, int | float) and number else None


def _written_and_read(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    written: list[Tensor] = []
    read: list[Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        writes = argument.alias_info is not None and argument.alias_info.is_write
        (written if writes else read).extend(_flat(value))
    return written, read


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [one for one in value if isinstance(one, Tensor)] if isinstance(value, tuple | list) else []
