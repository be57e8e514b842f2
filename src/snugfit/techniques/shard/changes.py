"""What a model changes in its passes, of what it holds beside parameters: buffers, and tensors and numbers in attributes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from snugfit.private_torch import NormBase
from snugfit.private_torch.collectives import own_part
from snugfit.techniques.held_values import held_values


class Change(NamedTuple):
    """A value as the passes of a step have left it for the next pass to find."""

    digest: str
    shape: tuple[int, ...]
    there_at_first: bool
    """Whether it was there when training began; else a pass has made it, and a later one has kept it."""


class Changes:
    """Compares what a model holds before the passes of a step with what it holds after them."""

    def __init__(self, model: nn.Module) -> None:
        """Remembers the model; looks at nothing yet.

        `model`: the model. Statistics of torch's norm layers are left out: the processes even them out.
        """
        self._model = model
        self._evened_out = {id(one) for norm in model.modules() if isinstance(norm, NormBase) for one in norm.buffers()}
        self._at_first: dict[str, Any] = {}
        self._before: dict[str, Any] = {}

    def begin(self) -> None:
        """Notes what there is before the passes of a step."""
        self._before = self._held()
        self._at_first = self._at_first or self._before

    def found(self) -> dict[str, Change]:
        """Returns what the passes changed of what was there from the start, and what an earlier step made and kept.

        A value that each pass makes anew (the last output, kept for inspection) is mostly read by no other pass.
        """
        found = {}
        for name, (value, version, shape) in self._held().items():
            if name not in self._before or (name in self._at_first and self._at_first[name][2] != shape):
                continue
            first, changed = (
                name in self._at_first,
                (id(value), version) != (id(self._before[name][0]), self._before[name][1]),
            )
            # What was there from the start counts if it was changed now; what a step has made since counts if it was
            # not, for then the pass keeps it.
            if first == changed and (first or isinstance(value, Tensor)):
                found[name] = Change(_digest(value), tuple(shape or ()), first)
        self._before = {}
        return found

    def made(self) -> dict[str, str]:
        """Returns digests of what the passes have made that was not there before, by name: some of it may be kept."""
        made = {}
        for name, (value, _, _) in self._held().items():
            if name not in self._before and (isinstance(value, float) or _has_values(value)):
                made[name] = _digest(value)
        return made

    def still_there(self, names: Iterable[str], again: Callable[[], AbstractContextManager[None]]) -> set[str]:
        """Returns which of the values that passes have made one more pass leaves alone.

        Args:
            names: What `made` returned.
            again: Context in which there has been one more pass.
        """
        before = self._held()
        with again():
            after = self._held()
        same = {name for name in names if name in after and before[name][0] is after[name][0]}
        return {name for name in same if before[name][1] == after[name][1]}

    def _held(self) -> dict[str, Any]:
        """What the model holds, by name: the object, which change of it this is, and its shape."""
        held = {path: one.value for path, one in held_values(self._model).items()}
        held |= {name: buffer for name, buffer in self._model.named_buffers() if id(buffer) not in self._evened_out}
        tensors = {name: (one, one._version, one.shape) for name, one in held.items() if isinstance(one, Tensor)}
        numbers = {name: (one, 0, None) for name, one in held.items() if isinstance(one, int | float | complex)}
        return tensors | numbers


def _has_values(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_meta or own_part(value) is not value:
        return False
    return value.numel() == 0 or value.untyped_storage().nbytes() > 0  # weights that were collected are gone again


def _digest(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    flat = value.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(flat.numpy().tobytes()).hexdigest()
