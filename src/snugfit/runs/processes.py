"""What the processes of a run ask each other: what the first one makes, and what each has. Loads no torch for one alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from snugfit.errors import SnugfitError

T = TypeVar("T")

DEFAULT_TIMEOUT = 300
"""Seconds that processes wait for each other at the start."""


class Processes:
    """The processes of a run; a process that trains alone is the only one."""

    def __init__(self, number: int = 0, count: int = 1) -> None:
        """Takes the number of this process, and how many there are."""
        self.number, self.count = number, count

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return self.number == 0

    def from_first(self, make: Callable[[], T]) -> T:
        """Returns in all processes what the first one makes, or raises its error; the others wait."""
        if self.count == 1:
            return make()
        import torch.distributed as dist

        box: list[Any] = [None, None]
        if self.first:
            try:
                box[0] = make()
            except SnugfitError as error:
                box[1] = error
        dist.broadcast_object_list(box, src=0)
        if box[1] is not None:
            raise box[1]
        found: T = box[0]
        return found

    def all(self, mine: T) -> list[T]:
        """Returns everybody's values, by process."""
        if self.count == 1:
            return [mine]
        import torch.distributed as dist

        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, mine)
        return found


def processes_here() -> Processes:
    """Returns the processes that torch.distributed has; loads no torch."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return Processes()
    return Processes(dist.get_rank(), dist.get_world_size())
