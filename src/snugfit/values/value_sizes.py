"""Sizes that values decide: how many elements are not zero, how many differ, how many boxes are kept.

What follows from the code, from data that were read or from random numbers is worked out; of the rest, shares are assumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from snugfit import private_torch
from snugfit.values import fake_failure
from snugfit.values.known_values import is_even, random_value

if TYPE_CHECKING:
    from snugfit.values.read_values import ReadValues

NO_ZEROS = "real numbers were taken not to be zero (nonzero)"
BOTH = "masks were taken to be true here and there (unique)"
ALL_BOXES = "of boxes that overlap (nms), all were taken to be kept"


class ValueSizes:
    """The sizes of one recording."""

    def __init__(self, values: ReadValues) -> None:
        """Takes what answers other questions about values."""
        self._values = values

    def sized(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], module: str) -> Any:
        """Returns how to make the result of an operator whose size depends on values, None for other operators.

        It is a function `make(empty)`, and `empty(shape, dtype)` makes a fake tensor.
        """
        name = func._opname
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if source is None:
            return None
        operator = str(func)
        if name == "nonzero":
            found = self.count(source, operator, module)
            return lambda empty: empty((found, source.dim()), torch.int64)
        if name == "masked_select":
            shape: Any = torch.broadcast_shapes(source.shape, args[1].shape)  # type: ignore[no-untyped-call]
            with self._values.selecting(source):
                share = self.count(args[1], operator, module) / max(1, args[1].numel())
            return lambda empty: empty((round(share * math.prod(shape)),), source.dtype)
        if name in ("_unique2", "unique_consecutive", "unique_dim", "unique_dim_consecutive"):
            dim = args[1] % source.dim() if "dim" in name and args[1] is not None else None
            elements = source.numel() if dim is None else source.shape[dim]
            values = self._drawn(source)
            number = (
                _differing(values, name, dim)
                if values is not None
                else self._distinct(source, elements, operator, module)
            )
            kept = (number,) if dim is None else (*source.shape[:dim], number, *source.shape[dim + 1 :])
            whole = tuple(source.shape) if dim is None else (elements,)
            return lambda empty: (
                empty(kept, source.dtype),
                empty(whole, torch.int64),
                empty((number,), torch.int64),
            )
        if name == "nms":
            self._values.answered.add(ALL_BOXES)
            return lambda empty: empty((source.shape[0],), torch.int64)
        if name == "bincount":
            least = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
            size = least or self._values.assumed(torch.int64, operator, module)
            kind = torch.float64 if len(args) > 1 and args[1] is not None else torch.int64
            return lambda empty: empty((size,), kind)
        if name == "repeat_interleave" and func._overloadname == "Tensor":
            size = kwargs.get("output_size")
            size = self._total(source, operator, module) if size is None else size
            return lambda empty: empty((size,), source.dtype)
        return None

    def count(self, tensor: torch.Tensor, operator: str, module: str) -> int:
        """Returns how many elements are not zero, or raises `CannotSimulateError`."""
        values = self._drawn(tensor)
        if values is not None:
            return int(values.count_nonzero())
        share = self._values.ledger.value(tensor)
        if share is None and self._values.held and tensor.dtype == torch.bool:
            self._values.answered.add(self._values.held)
            share = 1.0
        if share is None and tensor.is_floating_point() and self._values.assumptions.nonzero is None:
            self._values.answered.add(NO_ZEROS)
            share = 1.0
        if share is None:
            share = self._share("nonzero", operator, module)
        return round(share * tensor.numel())

    def _distinct(self, source: torch.Tensor, elements: int, operator: str, module: str) -> int:
        """How many different values are among `elements` of a tensor."""
        if source.dtype == torch.bool and source.numel() == elements and self._values.assumptions.unique is None:
            self._values.answered.add(BOTH)
            return min(elements, 2)
        return min(elements, max(1, round(self._share("unique", operator, module) * elements))) if elements else 0

    def _total(self, tensor: torch.Tensor, operator: str, module: str) -> int:
        """The sum of whole numbers."""
        values = self._drawn(tensor)
        if values is not None:
            return int(values.sum())
        value: int = self._values.assumed(torch.int64, operator, module)
        return value * tensor.numel()

    def _drawn(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The values of a tensor that decide on a size, with random numbers as they are drawn once."""
        exact = self._values.exact(tensor)
        value_at = random_value(tensor) if exact is None else None
        said = self._values.assumptions.said
        shares_are_said = (said.nonzero, said.unique) != (None, None)  # which goes before what is taken to be even
        if value_at is None or (shares_are_said and is_even(tensor)):
            return exact
        return self._values.drawn(tensor, value_at)

    def _share(self, name: str, operator: str, module: str) -> float:
        share = getattr(self._values.assumptions, name)
        if share is None:
            raise fake_failure.no_value(operator, module, f"{name}=0.5")
        self._values.answered.add(
            f"assumed {name}={share:g}: {fake_failure.place_in_words('sizes that values decide')}"
        )
        return float(share)


def _differing(values: torch.Tensor, name: str, dim: int | None) -> int:
    unique = torch.unique_consecutive if "consecutive" in name else torch.unique
    with private_torch.without_modes():
        found = unique(values, dim=dim)
    return found.numel() if dim is None else int(found.shape[dim])
