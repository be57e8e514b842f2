"""Weights that are too large for whatever is asked, found out as soon as the model is built, before anything is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from snugfit.errors import DoesNotFitError
from snugfit.units import format_bytes
from snugfit.workload import Workload


class TooHeavyError(DoesNotFitError):
    """A model has more bytes of weights than whoever asked can use."""

    def __init__(self, weight_bytes: Mapping[str, int], workload: Workload, switchable: tuple[str, ...]) -> None:
        """Takes the bytes of weights by the module that owns them, what is learned, and what the model could switch."""
        super().__init__(f"the weights alone take {format_bytes(sum(weight_bytes.values()))}.")
        self.weight_bytes, self.workload, self.switchable = weight_bytes, workload, switchable

    def __reduce__(self) -> Any:
        """It comes out of a worker."""
        return type(self), (self.weight_bytes, self.workload, self.switchable)
