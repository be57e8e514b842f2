"""Attributes that are others for a while: of objects, and of libraries that a simulation replaces. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Change = tuple[Any, str, Any]
"""Owner (a module, a class), name of its attribute, and what takes its place."""
_ABSENT = object()


@contextmanager
def replaced(changes: Iterable[Change]) -> Iterator[None]:
    """Context in which attributes are replaced; added names are removed again at its end."""
    wanted = list(changes)
    before = [(owner, name, getattr(owner, name, _ABSENT)) for owner, name, _ in wanted]
    try:
        for owner, name, value in wanted:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            if value is not _ABSENT:
                setattr(owner, name, value)
            elif hasattr(owner, name):
                delattr(owner, name)


def attributes_set(objects: Iterable[Any], **values: Any) -> AbstractContextManager[None]:
    """Returns a context in which all objects have these attributes."""
    return replaced([(one, name, value) for one in objects for name, value in values.items()])
