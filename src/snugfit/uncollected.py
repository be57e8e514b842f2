"""Stretches of code in which Python does not look for garbage, because they make many objects and leave none behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Python's garbage collector rests while the context is open; what holds on to itself is found after it."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
