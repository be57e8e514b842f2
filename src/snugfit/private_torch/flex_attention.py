"""What `torch.nn.attention.flex_attention` asks inside: whether it knows a device, and the operator behind it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

MODULE = "torch.nn.attention.flex_attention"


def with_kernel(kernel: Callable[..., Any]) -> list[tuple[Any, str, Any]]:
    """Returns the replacements by which it takes any device, compiles nothing and calls a kernel, if it is loaded at all.

    `kernel`: query, key, value, score_mod, block mask, scale, options -> output, and of each query's scores the logarithm of
    their sum and the largest.
    """
    module = sys.modules.get(MODULE)
    if module is None:
        return []
    inside = {
        "_validate_device": lambda *_: None,
        "flex_attention_hop": kernel,
        "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True,
    }
    return [(module, name, value) for name, value in inside.items()]
