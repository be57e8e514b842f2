"""The model compiled by the chosen backend."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from snugfit import private_torch
from snugfit.errors import InputError, did_you_mean, warn
from snugfit.techniques.base import ModelTechnique

_WITHOUT_PARTITIONER = ("eager", "aot_eager")


_compiled: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class Compile(ModelTechnique):
    """Compiles the model in place, so that its class and state_dict keys stay."""

    field = "compile"
    wraps = True

    def change(self, model: nn.Module) -> None:
        """Marks the model for compilation at its first call."""
        recipe = self.setup.recipe
        backends = torch.compiler.list_backends(exclude_tags=())
        if recipe.compile not in backends:
            raise InputError(
                f"compile is {recipe.compile!r}, which is no backend here; {did_you_mean(recipe.compile, backends)}"
            )
        if recipe.compile_memory_budget is not None and recipe.compile in _WITHOUT_PARTITIONER:
            warn(
                f"compile_memory_budget has no effect with compile={recipe.compile!r}, which keeps everything; use "
                "inductor or aot_eager_decomp_partition."
            )
        model.compile(backend=recipe.compile, dynamic=False)
        _compiled.add(model)

    @classmethod
    def undo(cls, model: nn.Module) -> None:
        """Lets a model run eagerly again; one that the caller compiled stays compiled."""
        if model in _compiled:
            _compiled.discard(model)
            private_torch.forget_compiled(model)

    def around_forward(self) -> AbstractContextManager[Any]:
        """Returns the compiler's setting: the first call of each shape compiles."""
        budget = self.setup.recipe.compile_memory_budget
        if budget is None:
            return nullcontext()
        context: AbstractContextManager[Any] = private_torch.compiler_memory_budget(budget)
        return context
