"""A block's first pass, tried: what it writes into, and whether it can be computed again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.errors import InputError, about
from snugfit.private_torch import tree_leaves, tree_map
from snugfit.private_torch.writes import BeforeWrites
from snugfit.techniques.forward_state import ForwardState, same_numbers

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Relative difference of two runs that kernels without a fixed order may make, by dtype; 16 bits: `ROUGH`."""
ROUGH = 2e-2


def tried(
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    block: nn.Module,
    state: ForwardState,
    around: AbstractContextManager[Any],
) -> tuple[str, Any]:
    """Runs a block once without keeping anything for backward, and puts back what it has moved.

    `args`: those of the pass to come; what is changed in containers among them is the caller's to put back.
    `around`: context of the pass; it keeps batch norms from updating their statistics.
    `state`: the state that the block reaches; it learns what passes write into.
    Returns why the block cannot be computed again (empty: it can), and what it gave.
    """
    inputs = {_storage(one): "its input" for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
    weights = {_storage(weight): f"its weight {name!r}" for name, weight in block.named_parameters()}
    before = state.take()
    writes = _Writes({**weights, **inputs}, lambda storage: state.about_to_write(before, storage))
    try:
        with around, torch.autograd.graph.saved_tensors_hooks(lambda _: None, _never), writes:
            output = forward(*args, **kwargs)
    except _Refused as refused:
        return str(refused), None
    finally:
        state.learn(before, writes.written)
    return "", tree_map(lambda one: one.detach() if isinstance(one, Tensor) else one, output)


def alike(one: Any, other: Any) -> bool:
    """Returns whether two runs gave the same, up to what kernels without a fixed order may differ in.

    `one`: what a block returned: tensors in containers, or anything else, which counts as the same.
    """
    left, right = tree_leaves(one), tree_leaves(other)
    if len(left) != len(right):
        return False
    tensors = [pair for pair in zip(left, right, strict=True) if isinstance(pair[0], Tensor)]
    return all(isinstance(two, Tensor) and _close(first, two.detach()) for first, two in tensors)


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if same_numbers(one, other):
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return False
    off, size = (one - other).abs().nan_to_num(), one.abs().nan_to_num().max()
    return bool((off <= TOLERANCES.get(one.dtype, ROUGH) * size).all())


class _Refused(Exception):
    """Raised when the pass is about to write into what must not change."""


class _Writes(BeforeWrites):
    """Notes the storages that operators write into, and ends the pass before it writes into a named one."""

    def __init__(self, named: dict[int, str], about_to_write: Callable[[int], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._named, self._about_to_write = named, about_to_write
        self.written: set[int] = set()

    def about_to_write(self, tensor: Tensor) -> None:
        """Notes a tensor's storage."""
        storage = _storage(tensor)
        if storage in self._named:
            raise _Refused(f"it writes into {self._named[storage]}")
        if storage not in self.written:
            self._about_to_write(storage)
            self.written.add(storage)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)


def _never(_: Any) -> Any:
    with about("checkpoint"):
        raise InputError(
            "checkpoint: a block's forward method puts what it computes where snugfit cannot take it away again, and the "
            "loss uses it, so the block cannot be run twice. Nothing was updated. Keep such values in attributes, lists or "
            "dicts of the model, name the blocks to checkpoint without this one, or set checkpoint='none'."
        )
