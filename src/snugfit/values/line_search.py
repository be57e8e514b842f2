"""torch's LBFGS in a simulation: it decides by the values of losses and gradients how long it goes on.

It is told that it goes on to `max_iter`, that every iteration adds to its history, and that a line search takes its first
point until the history is full, so that a step has as many iterations as it may, and from then on a second one, for which it
keeps two gradients (one in ten real ones does). Where the batch changes, an iteration may not be added, as the new loss
bends the other way: two vectors are then held beside the whole history. That is not counted, as most give it one batch; and
a search that goes on may keep two more (one in 1,000). What its closure asks is answered as everywhere else.

Source: `torch/optim/lbfgs.py`, LBFGS.step and _strong_wolfe.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import math
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import LBFGS

from snugfit.attributes import Change
from snugfit.values.read_values import ReadValues

GOES_ON = (
    "LBFGS was taken to go on to max_iter in every step, with a history that fills and lines searched twice; where the "
    "batch changes, it may hold two vectors more, of as many numbers as are trained"
)
_TAKEN = "abs(gtd_new) <="
"""The condition of its code by which a point of a line is taken."""
_ADDED = "ys >"
"""That by which an entry is added to the history."""
_TOO_FAR = "f_new > (f +"
"""That by which a point is too far out, so that one between it and the first is looked for."""


def calls_until_full(optimizer: object) -> int:
    """Returns after how many calls of `step` an optimizer needs no more memory: LBFGS must fill its history."""
    if not isinstance(optimizer, LBFGS):
        return 0
    group = optimizer.param_groups[0]
    iterations = max(1, min(group["max_iter"], group["max_eval"] - 1))
    return int(math.ceil((group["history_size"] + 1) / iterations) + 1)


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
    own = LBFGS.__init__.__code__.co_filename
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe()) if frame.f_code.co_filename == own]
    if not frames:
        return False
    asking, step = frames[0].f_locals, frames[-1].f_locals
    line = linecache.getline(own, frames[0].f_lineno)
    history = step.get("old_dirs")
    full = history is not None and len(history) == step["history_size"]
    return _TAKEN in line or _ADDED in line or (_TOO_FAR in line and full and asking["ls_iter"] == 0)
