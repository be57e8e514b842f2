"""`torch.jit.trace` in a script that is watched: the model runs once and stays as it is, as nothing can be traced there.

TensorBoard's `add_graph` traces as well, and finds an empty graph.
"""

from __future__ import annotations

from typing import Any

from snugfit.attributes import Change


def not_traced() -> list[Change]:
    """Returns the replacement of `torch.jit.trace`."""
    import torch

    from snugfit.private_torch import empty_graph

    def trace(func: Any, example_inputs: Any = None, *_: Any, **named: Any) -> Any:
        keywords = named.get("example_kwarg_inputs")
        if example_inputs is None:
            func(**keywords or {})
        else:
            func(*(example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)))
        if isinstance(func, torch.nn.Module):
            vars(func)["graph"] = empty_graph()
        return func

    return [(torch.jit, "trace", trace)]
