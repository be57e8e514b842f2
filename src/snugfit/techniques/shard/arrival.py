"""How weights get to all processes that train a model together: from the first, unit by unit, before each is shared out.

Only the first process has to have the model (`techniques/init`), on the host or mapped from a file. A unit goes to its
device, is sent to the devices of all, and is cut there, so that no GPU ever holds more than its shares and one unit. All
start from the same weights, those of one process to the last bit, whatever a constructor draws.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from snugfit.private_torch.collectives import own_part
from snugfit.techniques.init.apply import settle
from snugfit.techniques.shard.ranks import Ranks


class Arrival:
    """Brings the units of one model to this process's device, with the values of the first process."""

    def __init__(self, ranks: Ranks, *, sent: bool) -> None:
        """Brings nothing yet.

        Args:
            ranks: The processes.
            sent: Whether the first process's values are sent; otherwise each process has its own.
        """
        self._ranks, self._sent = ranks, sent
        self._done: set[nn.Module] = set()

    @torch.no_grad()
    def __call__(self, unit: nn.Module) -> None:
        """Brings a unit; modules in it that came before are left out.

        Args:
            unit: A module, with memory or without.
        """
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

    def _with_memory(self, tensor: Tensor) -> Tensor:
        """Memory for a tensor on meta, on the device."""
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self._ranks.device)
        return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
