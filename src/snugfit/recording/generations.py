"""Which generations of cards one recording stands for.

A card's compute capability decides little: the attention kernel, what kernels take inside themselves, what a script asks
for by name, and the workspace of cuBLAS. So a recording on one generation is mostly that on the others as well. Every
question about the capability is put here, and answered for all generations; those that would have been told something
else are left out of what the recording stands for. What cuBLAS and kernels take for themselves decides nothing, so it is put
in later.

Imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TypeVar

from snugfit.recording.cublas import CUBLAS, workspace_bytes
from snugfit.recording.trace import Trace

Capability = tuple[int, int]
T = TypeVar("T")

GENERATIONS: tuple[Capability, ...] = ((8, 0), (7, 5), (9, 0))
"""Compute capabilities that stand for their generation; the first for a card where none is named."""
CAPABILITIES: tuple[Capability, ...] = (*GENERATIONS, (7, 0), (8, 6), (8, 9), (10, 0), (12, 0))
"""Those of the cards in the table, one by one: a kernel may be refused to some cards of a generation."""


def generation_of(capability: Capability) -> Capability:
    """Returns the compute capability that stands for a card's generation."""
    return (7, 5) if capability < (8, 0) else (8, 0) if capability < (9, 0) else (9, 0)


class CardQuestions:
    """Answers a recording's questions about the card, and knows on which other cards it would have been the same."""

    def __init__(self, own: Capability) -> None:
        """Starts with all of them; `own` is the capability of the recorded card."""
        self.own = own
        self._same = set(CAPABILITIES)

    def ask(self, question: Callable[[Capability], T]) -> T:
        """Returns the answer of a function of the capability; those with another answer are left out."""
        self.leave_out(self.differing(question))
        return question(self.own)

    def differing(self, question: Callable[[Capability], object]) -> tuple[Capability, ...]:
        """Returns the capabilities for which a function of it has another answer."""
        answer = question(self.own)
        return tuple(other for other in CAPABILITIES if question(other) != answer)

    def leave_out(self, capabilities: Iterable[Capability] = CAPABILITIES) -> None:
        """Notes capabilities on which the recording would be another one."""
        self._same.difference_update(capabilities)

    @property
    def same(self) -> tuple[Capability, ...]:
        """The capabilities on which the recording is the same, except for workspaces of libraries."""
        return tuple(one for one in CAPABILITIES if one in self._same)


def on_generation(trace: Trace, capability: Capability) -> Trace:
    """Returns a recording as a card on which it is the same would have made it."""
    size, at = workspace_bytes(capability), GENERATIONS.index(generation_of(capability))
    storages = tuple(row._replace(nbytes=size) if row.operator == CUBLAS else row for row in trace.storages)
    workspaces = tuple(
        row._replace(nbytes=row.by_generation[at]) if row.by_generation else row for row in trace.workspaces
    )
    if storages == trace.storages and workspaces == trace.workspaces:
        return trace
    return dataclasses.replace(trace, storages=storages, workspaces=workspaces)
