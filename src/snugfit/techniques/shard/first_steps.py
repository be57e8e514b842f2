"""Whether processes that train a model together do the same with it, looked at in the first steps, before their updates.

Torch collects weights and adds gradients up as the modules come, so a process that takes another way than the others waits
for them in vain, or gets numbers of something else. And what a model changes in forward (a running mean of its own) stays in
the process, which has seen its share of the batch only. Both end here, in one message in all processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from snugfit.errors import InputError
from snugfit.private_torch import NormBase
from snugfit.techniques.held_values import held_values
from snugfit.techniques.shard.ranks import Ranks, is_simulated

STEPS = 3
"""Steps that are looked at: what chance decides (layer drop) may go well in one of them."""
_WAYS = ("collects the weights", "adds up the gradients", "is through")
_MISSED = "misses the backward pass"
_OF_SHARDING = ("DTensor", "FSDP", "setStorage", "storage of size 0")
"""Words of torch's errors where a model uses weights that are not there."""
_WHOLE = (
    "Shared-out weights are whole only while the forward method of their block, or of the model, runs, and in the backward "
    "pass from what it returns. Use shard='none', which takes any model."
)


def refusal(error: Exception) -> str:
    """Returns what is said where torch cannot train a model whose weights are shared out.

    Args:
        error: Torch's error.
    """
    line = str(error).strip().split("\n")[0].rstrip(".")
    # Sets have another order in each process, and all shall say the same.
    line = re.sub(r"\{([^}]*)\}", lambda found: ", ".join(sorted(found[1].split(", "))), line)
    return f"this model cannot be trained with its weights shared out ({line[:200]}). {_WHOLE}"


class FirstSteps:
    """What one process does in its first steps, beside the others."""

    def __init__(self, ranks: Ranks, model: nn.Module) -> None:
        """Has seen nothing yet.

        Args:
            ranks: The processes.
            model: The model, shared out or not.
        """
        self._ranks, self._model = ranks, model
        self._left = 0 if is_simulated() else STEPS
        self._looking = False
        self._names = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
        self._at_first: dict[str, Any] = {}
        self._evened_out = {id(one) for norm in model.modules() if isinstance(norm, NormBase) for one in norm.buffers()}

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Context of the passes of a step, before its update.

        Yields:
            Nothing.

        Raises:
            InputError: The processes do not do the same.
        """
        before: dict[str, Any] = {}
        if self._left:
            self._at_first, before = self._at_first or self._held(), self._held()
            self._looking = bool(self._names)
        try:
            yield
            self.before(-1, _WAYS[2])
        except (RuntimeError, AssertionError, ValueError) as error:
            if self._names and any(word in str(error) for word in _OF_SHARDING):
                raise InputError(refusal(error)) from error
            raise
        finally:
            self._looking = False
        if self._left:
            self._check_changes(before)
            self._left -= 1

    def before(self, number: int, way: str) -> None:
        """Looks whether all processes are about to ask each other for the same.

        Args:
            number: The unit's, in the order of modules; -1: none.
            way: What is asked.
        """
        if way == _MISSED:
            raise InputError(
                f"{self._names[number] or 'the model'!r} returns nothing that torch's sharding can see (it changes what it "
                f"is given, or returns an object of a class of its own), so its backward pass goes wrong. {_WHOLE}"
            )
        if not self._looking:
            return
        told = self._ranks.agree([number, _WAYS.index(way)])
        other = next((place for place, one in enumerate(told) if one != told[0]), None)
        if other is None:
            return
        self._looking = False
        raise InputError(
            f"the processes take different ways through the model: the first one {self._said(told[0])} next, and process "
            f"{other} {self._said(told[other])} (experts or layers that only some samples or steps use). Where weights are "
            "shared out, all have to use the same blocks in the same order. Use shard='none', where they need not, or let "
            "every process call every block."
        )

    def _said(self, told: list[float]) -> str:
        number, way = int(told[0]), _WAYS[int(told[1])]
        return way if number < 0 else f"{way} of {self._names[number] or 'the rest of the model'!r}"

    def _held(self) -> dict[str, Any]:
        """What the model holds, by name: the object, which change of it this is, and its shape."""
        held = {path: one.value for path, one in held_values(self._model).items()}
        held |= {name: buffer for name, buffer in self._model.named_buffers() if id(buffer) not in self._evened_out}
        tensors = {name: (one, one._version, one.shape) for name, one in held.items() if isinstance(one, Tensor)}
        numbers = {name: (one, 0, None) for name, one in held.items() if isinstance(one, int | float | complex)}
        return tensors | numbers

    def _check_changes(self, before: dict[str, Any]) -> None:
        """Compares what has changed, of what was there when training began; nothing else is kept for the next batch."""
        now = self._held()
        changed = {}
        for name, (value, version, shape) in now.items():
            stays = name in before and name in self._at_first and self._at_first[name][2] == shape
            if stays and (value is not before[name][0] or version != before[name][1]):
                changed[name] = _digest(value)
        told = self._ranks.tell(changed)
        for number, each in enumerate(told):
            unlike = sorted(name for name in each.keys() | told[0].keys() if each.get(name) != told[0].get(name))
            if unlike:
                raise InputError(
                    f"the model changes {unlike[0]!r} in forward, by what it makes of its samples, and process {number} "
                    "makes something else of its share of the batch than the first one. One process would have seen all "
                    "samples. Add it up in forward (torch.distributed.all_reduce), or train with one process."
                )


def _digest(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    flat = value.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(flat.numpy().tobytes()).hexdigest()
