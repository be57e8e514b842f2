"""Modules that are loaded when something is asked of them: what libraries import and a simulation never uses.

Python's own `importlib.util.LazyLoader` loads at the second `import`, and at each `from ... import`. Imports no torch.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

_LIBRARIES = (
    ("scipy", ModuleSpec("scipy.optimize", None, is_package=True), ("linear_sum_assignment",)),
    (
        "torchao",
        ModuleSpec("torchao.prototype.safetensors.safetensors_support", None),
        ("flatten_tensor_state_dict", "unflatten_tensor_state_dict"),
    ),
)
"""Libraries, and what transformers imports of them for every model: for the losses of detectors, and for files of weights
that torchao has quantised."""


class StandIn(types.ModuleType):
    """A module in another's place: it has some of its attributes, and any other loads the real one."""

    def __init__(self, spec: ModuleSpec, load: Callable[[], object], **answers: Any) -> None:
        """Takes the place; `load` puts the real module there."""
        super().__init__(spec.name)
        self.__spec__, self.__file__ = spec, spec.origin  # `inspect` asks every module
        self.__dict__.update(answers, _load=load)
        sys.modules[spec.name] = self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and not (name == "__path__" and self._imports_a_part()):
            raise AttributeError(name)  # asked of every module, of none by name
        self.__dict__["_load"]()
        return getattr(sys.modules[self.__name__], name)

    def _imports_a_part(self) -> bool:
        """Whether the path is asked for to import a module inside; `from ... import` asks as well, and needs none."""
        spec, asks = self.__spec__, sys._getframe(2).f_globals.get("__name__")
        is_package = spec is not None and spec.submodule_search_locations is not None
        return is_package and asks in ("importlib._bootstrap", "_frozen_importlib")


def late_functions(module: str, names: Sequence[str], load: Callable[[], object]) -> dict[str, Callable[..., Any]]:
    """Returns functions that load a module when they are called, and then call its own."""

    def late(name: str) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            load()
            return getattr(importlib.import_module(module), name)(*args, **kwargs)

        return function

    return {name: late(name) for name in names}


def load_libraries_late() -> None:
    """Puts stand-ins in the place of parts of libraries, where these are installed and not loaded."""
    for library, spec, names in _LIBRARIES:
        if spec.name not in sys.modules and importlib.util.find_spec(library) is not None:
            load = functools.partial(_load, spec.name)
            StandIn(spec, load, **late_functions(spec.name, names, load))


def _load(module: str) -> None:
    if isinstance(sys.modules.get(module), StandIn):
        del sys.modules[module]
        importlib.import_module(module)
