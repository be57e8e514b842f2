"""torch's LBFGS in a simulation: it decides by the values of losses and gradients how long it goes on.

It is told that it goes on to `max_iter`, that every iteration adds to its history until that is full, and that a line search
takes its first point: what a step takes most memory with, but for the points that a longer line search keeps. What its
closure asks is answered as everywhere else.

Source: `torch/optim/lbfgs.py`, LBFGS.step and _strong_wolfe.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import LBFGS

from snugfit.attributes import Change
from snugfit.values.read_values import ReadValues

GOES_ON = "LBFGS was taken to go on to max_iter in every step, with a history that fills, and lines searched once"
_HOLD = ("ys >", "abs(gtd_new) <=")
"""Conditions of its code that hold in a run where all goes well: a history entry is added, a point of the line is taken."""


def calls_until_full(optimizer: object) -> int:
    """Returns after how many calls of `step` an optimizer needs no more memory: LBFGS must fill its history."""
    if not isinstance(optimizer, LBFGS):
        return 0
    group = optimizer.param_groups[0]
    return int(math.ceil((group["history_size"] + 1) / group["max_iter"]) + 1)


def lbfgs_goes_on(values: ReadValues, answered: Callable[[str], None]) -> list[Change]:
    """Returns the replacements that let LBFGS run on tensors without values."""
    original = LBFGS.step
    losses = (1.0 / number for number in itertools.count(1))  # they fall, or it would stop

    def told(dtype: torch.dtype) -> Any:
        answered(GOES_ON)
        return _condition_holds() if dtype == torch.bool else next(losses)

    @functools.wraps(original)
    def step(self: LBFGS, closure: Callable[[], Any]) -> Any:
        def asked_by_the_person() -> Any:
            values.told = None
            try:
                return closure()
            finally:
                values.told = told

        values.told = told
        try:
            return original(self, asked_by_the_person)  # type: ignore[no-untyped-call]
        finally:
            values.told = None

    return [(LBFGS, "step", step)]


def _condition_holds() -> bool:
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_filename != LBFGS.__init__.__code__.co_filename:
        frame = frame.f_back
    line = "" if frame is None else linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return any(words in line for words in _HOLD)
