"""Which modules of a mixture-of-experts model hold its experts, found by structure and never by the model's name.

Experts come in two forms: a container called `experts` with one module each, or one module that stacks the matrices of
all experts in parameters of three dimensions, the first of which is the number of experts that the module itself states.
Experts that every token passes through (shared ones) are ordinary layers and do not count.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from snugfit.expert_stacks import stacks_of

if TYPE_CHECKING:
    import torch

CONTAINER = "experts"
"""Name under which containers of experts stand."""


def expert_modules(model: torch.nn.Module) -> tuple[str, ...]:
    """Returns the modules that hold experts.

    Dotted paths, those inside of others left out; empty for a model without experts.
    """
    found: list[str] = []
    for name, module in model.named_modules():
        if name and not inside(name, found) and (name.rpartition(".")[2] == CONTAINER or stacks_of(module)):
            found.append(name)
    return tuple(found)


def inside(module: str, places: Collection[str]) -> bool:
    """Returns whether a module is one of some places (dotted paths), or lies inside one."""
    return any(module == place or module.startswith(place + ".") for place in places)
