"""`torch.compile` left out of a script that is watched: under a watching mode torch compiles nothing, or refuses to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from snugfit.attributes import Change


def uncompiled(left_out: Callable[[], None]) -> list[Change]:
    """Returns what makes `torch.compile` give back what it is given; `left_out` is called where that is used."""
    import torch

    from snugfit.fake_device.library_kernels import compiled_parameter_update

    def as_it_is(model: Any = None, *_: Any, **__: Any) -> Any:
        if model is None:
            return as_it_is
        if model is compiled_parameter_update:
            return model
        if isinstance(model, torch.nn.Module):
            left_out()
            vars(model)["_orig_mod"] = model  # which scripts ask for to save it
            return model

        @functools.wraps(model)
        def called(*args: Any, **kwargs: Any) -> Any:  # libraries compile functions that nobody calls
            left_out()
            return model(*args, **kwargs)

        return called

    return [(torch, "compile", as_it_is), (torch.nn.Module, "compile", lambda *_, **__: left_out())]
