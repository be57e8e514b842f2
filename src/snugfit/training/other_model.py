"""A saved state is of another model: by which names and shapes that shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from snugfit.errors import InputError

_SHOWN = 4
"""Names that an error tells."""


class OtherModelError(InputError):
    """What was saved is of another model than the one that it is loaded into."""


def check_shapes(own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raises `OtherModelError` where two models differ; both: name -> shape, None for what is no tensor."""
    found = [f"{name} is new" for name in own if name not in saved]
    found += [f"{name} is gone" for name in saved if name not in own]
    found += [
        f"{name} has shape {list(own[name] or ())} and was saved with {list(saved[name] or ())}"
        for name in own
        if name in saved and own[name] != saved[name]
    ]
    if found:
        more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise OtherModelError(f"the model is no longer the one that was saved: {', '.join(found[:_SHOWN])}{more}.")


def shapes(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the shapes in a `state_dict`."""
    return {name: value.shape if isinstance(value, Tensor) else None for name, value in state.items()}
