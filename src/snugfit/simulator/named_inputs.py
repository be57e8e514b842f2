"""The hook that sees what a model is called with by name, which hooks of all modules are not told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from snugfit.simulator.compiled_code import is_traced


class NamedInputs:
    """A hook of one model; in copies and files of the model it does nothing."""

    def __init__(self, take: Callable[[Any, Any], None]) -> None:
        """`take`: given the model and its inputs by name, at each call."""
        self._take = take

    def __call__(self, module: Any, _: Any, by_name: Any) -> None:
        """Before the model runs."""
        if not is_traced():
            self._take(module, by_name)

    def __reduce__(self) -> Any:
        return NamedInputs, (_nothing,)  # scripts save whole models, and what watches them is not to be saved


def _nothing(*_: Any) -> None:
    pass
