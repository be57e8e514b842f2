"""Which prediction of a set-based detector belongs to which object: found by costs, which a simulation does not have.

The number of pairs is known all the same: every object gets a prediction of its own, as far as there are enough. Which
one it is decides no size. Boxes are given by centre and extent, so their corners are in order, which is checked.

Source: scipy, `optimize.linear_sum_assignment`; transformers, `loss/loss_for_object_detection.py`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from snugfit.fake_device.read_values import ReadValues
from snugfit.fake_device.replaced import replaced
from snugfit.private_torch import FakeTensor

ANSWER = "every object was matched with a prediction of its own"
_LOSSES, _SOLVER, _OVERLAP = "transformers.loss.", "linear_sum_assignment", "generalized_box_iou"


@contextmanager
def told_matched(values: ReadValues, answered: Callable[[str], None]) -> Iterator[None]:
    """Answers for the solver while the context is open, where losses of transformers that use it are loaded.

    Args:
        values: What else is answered about values in the recording.
        answered: Gets what was assumed, in words.

    Yields:
        Nothing.
    """
    losses = [module for name, module in list(sys.modules.items()) if name.startswith(_LOSSES)]
    changes = [
        (module, _SOLVER, _pairs(getattr(module, _SOLVER), answered)) for module in losses if hasattr(module, _SOLVER)
    ]
    changes += [
        (module, _OVERLAP, _in_order(getattr(module, _OVERLAP), values))
        for module in losses
        if hasattr(module, _OVERLAP)
    ]
    with replaced(changes):
        yield


def _pairs(solve: Callable[..., Any], answered: Callable[[str], None]) -> Callable[..., Any]:
    def pairs(costs: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(costs, FakeTensor):
            return solve(costs, *args, **kwargs)
        answered(ANSWER)
        count = min(costs.shape)
        return torch.arange(count), torch.arange(count)

    return pairs


def _in_order(overlap: Callable[..., Any], values: ReadValues) -> Callable[..., Any]:
    def of(first: Any, second: Any) -> Any:
        before = values.assumptions
        values.assumptions = dataclasses.replace(before, branch=True)
        try:
            return overlap(first, second)
        finally:
            values.assumptions = before

    return of
