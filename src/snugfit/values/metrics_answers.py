"""What torchmetrics finds out by looking at values: whether its arguments are valid, and which metrics have equal states.

Arguments are taken to be valid; what their check computes before it asks stays part of the recording. Metrics of a
collection whose states have the same names and shapes are taken to share them: it compares them once, after its first
update.
Source: `torchmetrics/collections.py`, MetricCollection._equal_metric_states; `torchmetrics/functional/classification`,
functions that end in _tensor_validation.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from snugfit.attributes import Change
from snugfit.errors import CannotSimulateError
from snugfit.private_torch.fake_tensors import FAKES

VALID = "arguments of torchmetrics were taken to be valid"
SHARED = "metrics of a torchmetrics collection that could share their states were taken to"
_CHECKS = "_tensor_validation"


def metrics_answers(answered: Callable[[str], None]) -> list[Change]:
    """Returns the replacements in the modules of torchmetrics that are loaded; `answered` gets answers in words."""
    if "torchmetrics" not in sys.modules:
        return []
    collections = sys.modules.get("torchmetrics.collections")
    shared = [(collections, "allclose", _shared(collections.allclose, answered))] if collections is not None else []
    return shared + [
        (module, name, _valid(check, answered))
        for place, module in list(sys.modules.items())
        if place.startswith("torchmetrics.")
        for name, check in list(vars(module).items())
        if name.endswith(_CHECKS)
    ]


def _shared(compare: Any, answered: Callable[[str], None]) -> Any:
    def allclose(first: Any, second: Any) -> bool:
        if type(first) not in FAKES:
            return bool(compare(first, second))
        answered(SHARED)
        return True

    return allclose


def _valid(check: Any, answered: Callable[[str], None]) -> Any:
    @functools.wraps(check)
    def validation(*args: Any, **kwargs: Any) -> None:
        try:
            check(*args, **kwargs)
        except CannotSimulateError:
            answered(VALID)

    return validation
