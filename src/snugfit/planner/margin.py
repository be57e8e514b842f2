"""The part of a budget that stays free because predictions err, and what is known about how much they err.

On cpu the prediction was held against 76 real runs on one processor (`benchmarks/results/cpu_truth.json`): the worst
was 0.075 % under the measurement, and the tolerance of that check is 1 %. Elsewhere it may err by more; `train
--budget` measures, and says so and takes less where it does. In 133 runs on an H100 (`benchmarks/results`) allocated
bytes were at most 2 % more than predicted, in all but one at most 0.6 %. Reserved bytes were more than 3 % above in 29,
mostly convolutional networks, whose freed blocks are more torn than predicted; where the card is full the allocator
gives such blocks back before it fails.

CUDA's context comes off a budget at the median of what was read of it (`contexts.yaml`). What the largest reading lies
above that is inside the margin: of a whole card 3 % is more, and in a small budget the margin is never less than it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from snugfit.device_kinds import CPU, CUDA
from snugfit.units import MIB, format_bytes

if TYPE_CHECKING:
    from snugfit.contexts import Context


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Margin:
    """How much of a budget stays free."""

    share: float
    """Part of the budget, 0 to 1."""
    source: str
    """What it is derived from."""
    least_bytes: int = 0
    """What stays free of any budget."""

    def bytes_of(self, budget_bytes: int) -> int:
        """Returns the bytes of a budget that stay free, rounded up."""
        return max(-int(-budget_bytes * self.share // 1), self.least_bytes)

    def room_bytes(self, budget_bytes: int, context_bytes: int) -> int:
        """Returns what a recipe may need: a budget less the margin and CUDA's context."""
        return budget_bytes - self.bytes_of(budget_bytes) - context_bytes

    def budget_for(self, need_bytes: int, context_bytes: int) -> int:
        """Returns the smallest budget, in whole MiB, that has room for a need."""
        budget = int((need_bytes + context_bytes) / (1 - self.share)) // MIB * MIB
        while self.room_bytes(budget, context_bytes) < need_bytes:
            budget += MIB
        return budget


_MARGINS = {
    CPU: Margin(
        share=0.01,
        source="1 %: the tolerance that 76 CPU runs kept on the processor of benchmarks/results/cpu_truth.json",
    ),
    CUDA: Margin(share=0.03, source="3 %: what the tensors of 133 runs on an H100 leave room for (docs/accuracy.md)"),
}


def margin_for(kind: str, context: Context | None = None) -> Margin:
    """Returns the margin on cpu or cuda; `context` is what CUDA takes on the card."""
    margin = _MARGINS[kind]
    if context is None or not context.above_typical_bytes:
        return margin
    above = context.above_typical_bytes
    source = f"{margin.source}; at least the {format_bytes(above)} that CUDA's context may take beyond what is usual"
    return dataclasses.replace(margin, least_bytes=above, source=source)
