"""The numbers of a pretend card: each operator runs on CPU tensors that lie in the card's blocks.

A fake tensor says which layout and dtype a result has on the card; the CPU's kernel gives the numbers, which are put into
that layout. Arguments are looked up when an operator is queued and read when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from snugfit.fake_device.personality import DEVICE_TYPE
from snugfit.pretend_card import only_on_cards
from snugfit.private_torch import dispatcher
from snugfit.techniques.batches import tensors_in

_CPU = torch.device("cpu")
_UNFILLED = frozenset({"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted"})
"""Operators that make memory and put nothing into it."""


def arguments(value: Any, find: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Returns an operator's arguments for the CPU; `find` returns the CPU tensor for any tensor."""
    if isinstance(value, torch.Tensor):
        return find(value)
    if isinstance(value, torch.device):
        return _CPU if value.type == DEVICE_TYPE else value
    if isinstance(value, list | tuple):
        return type(value)([arguments(part, find) for part in value])
    return value


def work_of(
    operator: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    result: Any,
    find: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[], None] | None:
    """Returns the work a stream must do for an operator; None for one that makes views or unfilled memory."""
    if operator._opname in _UNFILLED or torch.Tag.inplace_view in operator.tags:
        return None
    writes = bool(dispatcher.places_written(operator))
    given = {tensor.untyped_storage()._cdata for tensor in tensors_in((*args, *kwargs.values()))}
    results = _one_by_one(result)
    fresh = [
        isinstance(one, torch.Tensor) and one.untyped_storage()._cdata not in given and one.numel() > 0
        for one in results
    ]
    # A library's operator may write to what it does not say, as FSDP's that copies shards to where they are gathered.
    if not writes and not any(fresh) and operator.namespace == "aten":
        return None
    own_args = arguments(args, find)
    own_kwargs = {name: arguments(value, find) for name, value in kwargs.items() if name != "pin_memory"}
    targets = [(number, find(one)) for number, (one, new) in enumerate(zip(results, fresh, strict=True)) if new]
    run = only_on_cards.KERNELS.get(operator, operator)

    def work() -> None:
        made = _computed(run, operator, own_args, own_kwargs)
        if targets:
            values = _one_by_one(made)
            for number, target in targets:
                _put(values[number], target)

    return work


def _one_by_one(result: Any) -> list[Any]:
    """What an operator returns, lists in it taken apart."""
    if not isinstance(result, list | tuple):
        return [result]
    return [part for one in result for part in _one_by_one(one)]


def _put(value: Any, target: torch.Tensor) -> None:
    """Writes a kernel's result in the layout that the card has."""
    # Some kernels of the CPU leave a result empty that nobody reads, as the saved mean of a norm in evaluation.
    if isinstance(value, torch.Tensor) and value.numel():
        target.copy_(value.reshape(target.shape) if value.shape != target.shape else value)


_HALVES = (torch.float16, torch.bfloat16)


def _computed(run: Any, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs a kernel, in float32 (as cards compute inside) where the CPU has none for 16-bit arguments."""
    try:
        return run(*args, **kwargs)
    except (RuntimeError, NotImplementedError):
        halves = any(tensor.dtype in _HALVES for tensor in tensors_in((*args, *kwargs.values())))
        if not halves or dispatcher.places_written(operator):
            raise
    # Outside of the handler: an error that is kept keeps its frames, and they the tensors of who called.

    def wide(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.dtype in _HALVES else tensor

    return run(*arguments(args, wide), **{name: arguments(value, wide) for name, value in kwargs.items()})
