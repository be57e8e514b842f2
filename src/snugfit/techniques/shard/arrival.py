"""How weights get to all processes that train a model together: from the first, unit by unit, before each is shared out.

Only the first process has to have the model (`techniques/init`), on the host or mapped from a file. A unit goes to its
device, is sent to the devices of all, and is cut there, so that no GPU ever holds more than its shares and one unit. All
start from the same weights, those of one process to the last bit, whatever a constructor draws; and from the same of
whatever else the model holds, in lists and objects, too.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.errors import InputError
from snugfit.private_torch.collectives import own_part
from snugfit.techniques.held_values import held_values
from snugfit.techniques.init.apply import settle
from snugfit.techniques.shard.ranks import Ranks, is_simulated


class Arrival:
    """Brings the units of one model to this process's device, with the values of the first process."""

    def __init__(self, ranks: Ranks, *, sent: bool) -> None:
        """Remembers the processes; brings nothing yet.

        `sent`: whether the first process's values are sent; otherwise each process has its own.
        """
        self._ranks, self._sent = ranks, sent
        self._done: set[nn.Module] = set()

    @torch.no_grad()
    def __call__(self, unit: nn.Module) -> None:
        """Brings a unit, with memory or without; modules inside that came before are left out."""
        new = [module for module in unit.modules() if module not in self._done]
        self._done.update(new)
        made: dict[Tensor, Tensor] = {}
        for module in new:
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None and tensor.is_meta:
                        made[tensor] = made[tensor] if tensor in made else self._with_memory(tensor)
                        table[name] = made[tensor]  # type: ignore[assignment]
        made.clear()  # the unit's memory is to go when it is shared out
        settle(unit, device=self._ranks.device, dtype=None)
        if not self._sent:
            return
        for module in new:
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None and own_part(tensor) is tensor:
                    self._ranks.from_first(tensor)

    @torch.no_grad()
    def attributes(self, model: nn.Module) -> None:
        """Brings tensors, generators and numbers in plain attributes; `InputError` where their kinds differ."""
        if is_simulated():
            return
        held = held_values(model)
        told = self._ranks.tell({path: _kind(one.value) for path, one in held.items()})
        for path in sorted({path for each in told for path in each}):
            kinds = [each.get(path, "nothing") for each in told]
            unlike = [number for number, kind in enumerate(kinds) if kind != kinds[0]]
            if not unlike or _is_of_the_process(kinds):
                continue
            if not all(isinstance(kind, _Number) for kind in kinds) or held[path].put is None:
                raise InputError(
                    f"{path!r} of the model is {kinds[0]} in the first process and {kinds[unlike[0]]} in process "
                    f"{unlike[0]}. Build it in the same way in every process: from the same seed and the same values."
                )
        for path, (value, put) in held.items():
            if isinstance(value, Tensor) and not value.is_meta:
                there = value.to(self._ranks.device)
                self._ranks.from_first(there)
                if there is not value:
                    value.copy_(there)
            elif isinstance(value, torch.Generator):
                state = value.get_state().to(self._ranks.device)
                self._ranks.from_first(state)
                value.set_state(state.cpu())
            elif put is not None and not _is_of_the_process([each[path] for each in told]):
                put(told[0][path].value)

    def _with_memory(self, tensor: Tensor) -> Tensor:
        """Memory for a tensor on meta, on the device."""
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self._ranks.device)
        return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


@dataclasses.dataclass(frozen=True, slots=True)
class _Number:
    """A number in an attribute."""

    value: Any

    def __str__(self) -> str:
        return repr(self.value)


def _kind(value: Any) -> str | _Number:
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype}, {list(value.shape)}"
    return "a generator" if isinstance(value, torch.Generator) else _Number(value)


def _is_of_the_process(kinds: Sequence[str | _Number]) -> bool:
    """Whether a value is the number of the process, in all of them or in its machine."""
    gpus = int(os.environ.get("LOCAL_WORLD_SIZE", len(kinds)))
    return any(all(kind == _Number(number % size) for number, kind in enumerate(kinds)) for size in (len(kinds), gpus))
