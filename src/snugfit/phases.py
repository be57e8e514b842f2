"""Where in a training run we are: `with phase("forward"):`, and observers who want to know.

The simulator and the measurements learn from these marks which part of the run an allocation belongs to; training itself
never looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

PHASES = ("build", "load", "data", "forward", "backward", "optimizer", "evaluation")
Listener = Callable[[str, bool], None]

_listeners: list[Listener] = []


class phase:
    """Marks a part of the run by one of `PHASES`; may be nested."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        assert name in PHASES, name
        self.name = name

    def __enter__(self) -> None:
        for listener in _listeners:
            listener(self.name, True)

    def __exit__(self, *_: object) -> None:
        for listener in _listeners:
            listener(self.name, False)


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Calls an observer at each start and end of a phase while the context is open.

    `listener`: called with the phase's name and whether it was entered (True) or left (False).
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
