"""Kernels that a library has written in Triton: each is one that reads and writes what it is given, and makes nothing.

What they need is allocated by the code around them, which runs as it is. How long they take is that of going over their
tensors once; what they compute in between is not counted.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from snugfit.attributes import Change
from snugfit.private_torch.dispatcher import own_operator
from snugfit.techniques.batches import tensors_in

_JIT, _TUNED = "triton.runtime.jit", "triton.runtime.autotuner"


def triton_launches(kind: str, say: Callable[[str], None]) -> list[Change]:
    """Returns the replacements for launches of Triton's kernels on a card, if it is loaded; `say` is told of each kernel."""
    if kind == "cpu" or _JIT not in sys.modules or _TUNED not in sys.modules:
        return []

    def run(kernel: Any, *args: Any, **settings: Any) -> None:
        inner = kernel
        while hasattr(inner, "fn"):  # tuned, with heuristics, compiled: the function is inside
            inner = inner.fn
        say(
            f"{getattr(inner, '__name__', 'a kernel')} is written in Triton and was counted as one pass over its tensors"
        )
        _operator()(tensors_in((*args, *settings.values())))

    owners = (sys.modules[_JIT].JITFunction, sys.modules[_TUNED].Autotuner, sys.modules[_TUNED].Heuristics)
    return [(owner, "run", run) for owner in owners]


@functools.cache
def _operator() -> Any:
    return own_operator("triton_kernel(Tensor(a!)[] tensors) -> ()", lambda tensors: None)
