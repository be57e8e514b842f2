"""What a processor does between two operators that compute, as far as it can be counted: in a simulation and in a real step.

Who called an operator decides what its call costs. In forward Python calls it and autograd makes a node for it; in backward
autograd calls it from C++; inside a `torch.autograd.Function`, and in an update, Python calls it and nobody notes anything.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from snugfit.private_torch import current_node
from snugfit.recording.trace import CODE, ENGINE, GRAPH

_detach = torch.ops.aten.detach.default


def caller() -> str:
    """Returns who calls the operator that is dispatched now: `GRAPH`, `ENGINE` or `CODE`."""
    if torch.is_grad_enabled():
        return GRAPH
    node = current_node()
    return CODE if node is None or isinstance(node, BackwardCFunction) else ENGINE


def keeps_again(operator: Any) -> bool:
    """Returns whether an operator, run in backward, keeps a tensor of a checkpointed block that is computed again.

    The hook of torch's checkpoint detaches each of them; autograd itself detaches gradients, at the nodes of parameters.

    Args:
        operator: The overload.
    """
    return operator is _detach and not hasattr(current_node(), "variable")


class Between:
    """Counts since the last operator that computed."""

    def __init__(self) -> None:
        """Begins at nothing."""
        self.kept_again = 0
        """Tensors that a checkpointed block kept when it was computed again."""
        self.views = 0
        """Views and empty tensors made."""
        self._entered = 0

    def take(self, entered: int) -> dict[str, Any]:
        """Returns the counts as fields of a run, and begins anew.

        Args:
            entered: Modules called since the recording began.
        """
        told = {
            "caller": caller(),
            "kept_again": self.kept_again,
            "views": self.views,
            "modules": entered - self._entered,
        }
        self.kept_again, self.views, self._entered = 0, 0, entered
        return told
