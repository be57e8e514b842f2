"""The modules of a script that nobody introduced: found when they are called, named, and never kept alive."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from snugfit.measure.module_path import ModulePath
from snugfit.techniques.blocks import find_blocks


class SeenModules(ModulePath):
    """Names modules as `ModulePath` does, but holds them weakly: a script that drops its model must get its memory back."""

    def __init__(self) -> None:
        """Has seen nothing."""
        super().__init__()
        self.roots: list[weakref.ref[torch.nn.Module]] = []
        """Modules with parameters that were called from outside of all modules, in order of their first call."""
        self.block_names: list[str] = []
        """Repeated blocks of those models."""
        self._seen: dict[int, weakref.ref[Any]] = {}

    def watch(self, model: torch.nn.Module) -> None:
        """Takes the names of a model's modules; those of the first model have no prefix, later ones their class.

        Args:
            model: A module with parameters.
        """
        if id(model) in self._seen:
            return
        prefix = type(model).__name__ if any(ref() is not None for ref in self.roots) else ""
        self.roots.append(weakref.ref(model))
        self.block_names += [".".join(filter(None, (prefix, name))) for name in find_blocks(model)]
        for name, module in model.named_modules():
            path = ".".join(filter(None, (prefix, name)))
            key = id(module)
            self._names[key] = path
            self._seen[key] = weakref.ref(module, lambda _, key=key: self._forget(key))  # type: ignore[misc]
            for parameter in module._parameters.values():
                if parameter is not None:
                    self._owners[id(parameter)] = path

    def name_of(self, module: torch.nn.Module) -> str:
        """Returns the path of a module that was watched; empty for others."""
        return self._names.get(id(module), "")

    def owner_of(self, parameter: torch.Tensor) -> str:
        """Returns the path of the module that holds a parameter; empty where it is not known."""
        return self._owners.get(id(parameter), "")

    def models(self) -> list[torch.nn.Module]:
        """Returns the roots that still live."""
        return [model for model in (ref() for ref in self.roots) if model is not None]

    def _forget(self, key: int) -> None:
        self._seen.pop(key, None)
        self._names.pop(key, None)
