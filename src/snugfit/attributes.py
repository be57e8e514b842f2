"""Attributes that are others for a while. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def attributes_set(objects: Iterable[Any], **values: Any) -> Iterator[None]:
    """Context in which all objects have these attributes; afterwards they have their own again."""
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
