"""What an operator of a model costs the host: module, view, autograd and dispatcher around it, with next to nothing in it.

A model of Python modules on a few numbers is run forward and backward; its time over its operators is the answer. It is
the same on a card, whose host issues such operators one after the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from snugfit.device_kinds import wait_for, work_clock
from snugfit.private_torch import DirectMode

_ROUNDS = 30
_WIDTH, _TOKENS, _BLOCKS = 16, 4, 2


def issue_seconds(device: torch.device) -> float:
    """Returns the host's time for an operator in forward or backward of a model, also where a card computes meanwhile."""
    with torch.random.fork_rng(devices=[]):
        # Layers of torch that run many small modules in Python, as people's models do.
        layer = nn.TransformerDecoderLayer(_WIDTH, 2, 4 * _WIDTH, dropout=0.0, batch_first=True)
        model = nn.TransformerDecoder(layer, _BLOCKS).to(device)
    inputs = torch.ones(1, _TOKENS, _WIDTH, device=device)
    clock = work_clock(device)
    best = float("inf")
    with torch.enable_grad():
        with _Count() as count:
            model(inputs, inputs).sum().backward()
        for _ in range(_ROUNDS):
            wait_for(device)
            begin = clock()
            model(inputs, inputs).sum().backward()
            best = min(best, clock() - begin)
    return float(best / count.computing)


class _Count(DirectMode):  # type: ignore[no-untyped-call]
    """Counts operators that compute: what only shows a tensor in another way, or takes memory, launches nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.computing = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._opname.removeprefix("new_")
        self.computing += not (func.is_view or name.startswith(("_unsafe_view", "empty")))
        return func(*args, **(kwargs or {}))
