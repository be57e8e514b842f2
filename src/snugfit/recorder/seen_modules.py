"""The modules of a script that nobody introduced: found when they are called, and named."""

from __future__ import annotations

import weakref

import torch

from snugfit.recorder.module_path import ModulePath
from snugfit.techniques.blocks import find_blocks


class SeenModules(ModulePath):
    """Names modules as `ModulePath` does, and knows which of them are models."""

    def __init__(self) -> None:
        super().__init__()
        self.roots: list[weakref.ref[torch.nn.Module]] = []
        """Modules with parameters that were called from outside of all modules, in order of their first call."""
        self.block_names: list[str] = []
        """Repeated blocks of those models."""

    def watch(self, model: torch.nn.Module, prefix: str = "") -> None:
        """Takes the names of a model's modules; those of later models than the first are prefixed by their class."""
        if id(model) in self._alive:
            return
        prefix = prefix or (type(model).__name__ if self.models() else "")
        self.roots.append(weakref.ref(model))
        self.block_names += [".".join(filter(None, (prefix, name))) for name in find_blocks(model)]
        super().watch(model, prefix)

    def models(self) -> list[torch.nn.Module]:
        """Returns the models that are still alive."""
        return [model for model in (ref() for ref in self.roots) if model is not None]
