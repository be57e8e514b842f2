"""The model compiled by the chosen backend."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from snugfit import private_torch
from snugfit.errors import InputError, did_you_mean, warn
from snugfit.private_torch import compiler
from snugfit.techniques.base import ModelTechnique

_WITHOUT_PARTITIONER = ("eager", "aot_eager")


_compiled: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class Compile(ModelTechnique):
    """Compiles the model in place, so that its class and state_dict keys stay."""

    field = "compile"
    stage = "model"
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

    @contextmanager
    def around_forward(self) -> Iterator[None]:
        """Context of the compiler's setting, in which the first call of each shape compiles."""
        budget, before = self.setup.recipe.compile_memory_budget, compiler.graphs_made()
        with nullcontext() if budget is None else private_torch.compiler_memory_budget(budget):
            yield
        if compiler.graphs_made() > before:
            # Tracing leaves objects that refer to each other and to the arguments (logits, behind a break of the graph);
            # Python's collector would come for them at a time of its own, perhaps many steps later.
            gc.collect()
