"""Page-locked batches, where there is a card to copy them to."""

from __future__ import annotations

import functools

from snugfit.device_kinds import KINDS, is_there
from snugfit.errors import warn


def usable_pin_memory(wanted: bool) -> bool:
    """Returns whether batches are to be page-locked: only where a CUDA device takes them.

    Args:
        wanted: What the recipe asks for.

    Returns:
        `wanted` with CUDA, else False; says once in a process that the wish has no effect.
    """
    if wanted and not any(kind.page_locked and is_there(name) for name, kind in KINDS.items()):
        _warn_no_effect()
        return False
    return wanted


@functools.cache
def _warn_no_effect() -> None:
    warn("pin_memory has no effect here: there is no CUDA device to copy to. Leave it out.")
