"""Adapters beside experts whose matrices are stacked in one parameter: peft's, with products of low rank in their place.

peft adds `B A` to the stack and multiplies by the sum, which is as large as the weights and kept for backward. Here the same
is two products beside that with the stack, `x A' B'`, so it also goes with packed stacks. Names, shapes and files are peft's
(`target_parameters`): the matrices `A` of all experts lie in one, and those `B`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.expert_stacks import is_stack
from snugfit.library_imports import needed
from snugfit.techniques.frozen_stack import FrozenStack
from snugfit.techniques.stacked_matrices import Matrices, Multiply


def expert_stacks(model: nn.Module) -> dict[str, nn.Module]:
    """Returns the stacks of experts' matrices, packed or not.

    Name -> the module that has it, in the order of the plain model.
    """
    return {
        f"{place}.{name}": module
        for place, module in model.named_modules()
        for name, held in (*module._parameters.items(), *module._modules.items())
        if isinstance(held, FrozenStack) or (isinstance(held, nn.Parameter) and is_stack(module, held))
    }


def add_beside(model: nn.Module, name: str, config: Any, adapter: str) -> None:
    """Puts an adapter beside a stack, in place; adapters of several stacks of the same experts are nested, as in peft."""
    place, _, parameter = name.rpartition(".")
    target = model.get_submodule(place)
    model.set_submodule(
        place,
        _adapter_class()(
            target, adapter, parameter_name=parameter, config=config, r=config.r, lora_alpha=config.lora_alpha
        ),
    )


@functools.cache
def _adapter_class() -> Any:
    """The class of adapters, heir of peft's, which is loaded only when one is made."""
    layers = needed("an adapter needs", "peft.tuners.lora.layer", install="snugfit[text]")

    class StackedAdapter(layers.ParamWrapper):  # type: ignore[misc, name-defined]
        """Peft's wrapper around experts, which lends them a stack with an adapter while they run."""

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            """Runs the experts."""
            if self.disable_adapters or self.merged or not set(self.active_adapters) & set(self.lora_A):
                return self.base_layer(*args, **kwargs)
            (name,) = (one for one in self.active_adapters if one in self.lora_A)
            experts, held = self.get_base_layer(), self.get_param()
            base = held.matrices() if isinstance(held, FrozenStack) else held
            lent = vars(experts)  # is looked at before parameters and modules
            lent[self.parameter_name] = AdaptedMatrices(base, *self.get_delta_factors(name))
            try:
                return self.base_layer(*args, **kwargs)
            finally:
                del lent[self.parameter_name]

    return StackedAdapter


class AdaptedMatrices(Matrices):
    """Matrices, and beside them products of low rank: `base + scale * left @ right`."""

    def __init__(self, base: Any, left: Tensor, right: Tensor, scale: float) -> None:
        self._base, self._left, self._right, self._scale = base, left, right, scale
        self.shape, self.dtype, self.device = base.shape, base.dtype, base.device

    @property
    def mT(self) -> AdaptedMatrices:
        """The same matrices, transposed."""
        return AdaptedMatrices(self._base.mT, self._right.mT, self._left.mT, self._scale)

    def picked(self, index: Any) -> AdaptedMatrices:
        """Returns some of these matrices."""
        return AdaptedMatrices(self._base[index], self._left[index], self._right[index], self._scale)

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """Returns the sum."""
        base = self._base.dense(dtype) if isinstance(self._base, Matrices) else self._base
        return base + self._scale * (self._left @ self._right).to(base.dtype)

    def times(self, rows: Tensor, multiply: Multiply) -> Tensor:
        """Returns the product: that with the base, and those of low rank."""
        base = self._base
        whole = base.times(rows, multiply) if isinstance(base, Matrices) else multiply(rows, base)
        left, right = (_laid_out(part.to(rows.dtype)) for part in (self._left, self._right))
        return torch.add(whole, multiply(multiply(rows, left), right), alpha=self._scale)


def _laid_out(part: Tensor) -> Tensor:
    """Matrices whose rows or columns are without gaps, as `grouped_mm` takes them; peft's `B` has the experts inside."""
    return part if 1 in part.stride()[-2:] else part.contiguous()
