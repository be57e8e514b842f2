"""Attributes that are others for a while. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def attributes_set(objects: Iterable[Any], **values: Any) -> Iterator[None]:
    """Gives attributes of objects other values, and what they were before when the context ends.

    Args:
        objects: The objects.
        **values: Attribute -> the value that all of them have meanwhile.

    Yields:
        Nothing.
    """
    before = [(one, {name: getattr(one, name) for name in values}) for one in objects]
    try:
        for one, _ in before:
            for name, value in values.items():
                setattr(one, name, value)
        yield
    finally:
        for one, own in before:
            for name, value in own.items():
                setattr(one, name, value)
