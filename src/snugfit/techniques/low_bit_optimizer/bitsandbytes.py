"""`bitsandbytes` AdamW with 8-bit state, as our step needs it; imported only when a recipe asks for it.

Three things are put right, each where the library has a method for it: which parameters stay in 32 bits is read off the
parameter group (the library keeps a table by `id` of the parameter, for the whole process, and ids are used again), the
tables of values are made once, and paged state is paged again after it was loaded.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from snugfit.techniques.low_bit_optimizer.apply import FULL_PRECISION, PAGED
from snugfit.techniques.paged_state import PagedState

_functional: Any = importlib.import_module("bitsandbytes.functional")
_AdamW8bit: Any = importlib.import_module("bitsandbytes.optim").AdamW8bit


@functools.cache
def lookup_tables() -> tuple[Tensor, Tensor]:
    """Returns what the 256 codes of the first and of the second moment stand for: two float32 tensors on the host."""
    return _functional.create_dynamic_map(signed=True), _functional.create_dynamic_map(signed=False)


def build(name: str, groups: list[dict[str, Any]], device: torch.device, settings: dict[str, Any]) -> EightBitAdamW:
    """Builds the optimizer.

    `groups`: parameter groups with `full_precision`.
    `device`: where the update runs; nothing is paged on cpu.
    """
    return EightBitAdamW(groups, is_paged=name == PAGED and device.type != "cpu", **settings)


class EightBitAdamW(PagedState, _AdamW8bit):  # type: ignore[misc]
    """The library's AdamW, with groups that may stay in full precision."""

    def fill_qmap(self) -> None:
        """Takes the tables of values, which every optimizer shares on the host."""
        self.name2qmap["dynamic"], self.name2qmap["udynamic"] = lookup_tables()

    def get_config(self, gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
        """Returns the library's settings of parameter `pindex` of group `gindex`: 32 bits where the group asks for them."""
        config: dict[str, Any] = super().get_config(gindex, pindex, group)
        return {**config, "optim_bits": 32} if group[FULL_PRECISION] else config
