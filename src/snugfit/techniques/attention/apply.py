"""The attention kernels of a model's own config, switched and restored."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from snugfit.errors import InputError, about, warn
from snugfit.techniques.base import ModelTechnique, Setup

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

_KERNELS = {"eager": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}
_undo: weakref.WeakKeyDictionary[nn.Module, list[Callable[[], None]]] = weakref.WeakKeyDictionary()
"""Switched model -> what brings it back."""


class Attention(ModelTechnique):
    """Switches the model's own attention and limits torch's choice of kernels."""

    field = "attention"
    stage = "calls"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        # Blocks that are computed again must take the same kernel there.
        self.spans_backward = setup.recipe.attention in _KERNELS and setup.recipe.checkpoint != "none"

    def change(self, model: nn.Module) -> None:
        """Switches what the model offers to switch; warns when it has no attention."""
        choice = self.setup.recipe.attention
        undo = _undo.setdefault(model, [])
        switched = _switch_families(model, choice, undo)
        for module in model.modules():
            fused = getattr(module, "fused_attn", None)
            if isinstance(fused, bool):
                undo.append(partial(setattr, module, "fused_attn", fused))
                module.fused_attn = choice != "eager"  # type: ignore[assignment]
                switched = True
        if not switched and not any("attention" in type(module).__name__.lower() for module in model.modules()):
            kernel = "it has no effect"
            if choice in _KERNELS:
                kernel = (
                    f"only calls of torch's scaled_dot_product_attention, if there are any, take the {choice} kernel"
                )
            warn(f"attention={choice!r} finds no attention in the modules of {type(model).__name__}: {kernel}.")

    @classmethod
    def may_gain(cls, model: nn.Module) -> bool:
        """Returns whether a model has attention that holds every score and says that it can do without."""
        return any(
            getattr(part, "fused_attn", None) is False
            or (
                callable(getattr(part, "set_attn_implementation", None)) and _implementation(part) not in (None, "sdpa")
            )
            for part in model.modules()
        )

    @classmethod
    def comes_off(cls, old: Recipe, new: Recipe) -> bool:
        """Returns whether another kernel is wanted."""
        return old.attention != new.attention

    @classmethod
    def undo(cls, model: nn.Module) -> None:
        """Gives a model the attention back that it had before it was prepared."""
        for undo in reversed(_undo.pop(model, [])):
            undo()

    @contextmanager
    def around_step(self) -> Iterator[None]:
        """Context that limits torch's kernels, in backward as well: checkpointing computes there again."""
        choice = self.setup.recipe.attention
        try:
            with sdpa_kernel(_KERNELS[choice]) if choice in _KERNELS else nullcontext():
                yield
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            with about("attention"):
                raise InputError(
                    f"attention={choice!r}: the {choice} kernel cannot run here; flash needs 16-bit tensors on a CUDA "
                    "device (or no attention dropout on CPU) and no mask. Use attention='sdpa', which takes the best kernel "
                    "that can."
                ) from error


def _switch_families(model: nn.Module, choice: str, undo: list[Callable[[], None]]) -> bool:
    """Switches models of transformers, which may be parts of the model."""
    wanted = "eager" if choice == "eager" else "sdpa"
    inside: set[nn.Module] = set()
    for part in model.modules():
        switch = getattr(part, "set_attn_implementation", None)
        if part in inside or not callable(switch):
            continue
        inside.update(part.modules())  # it switches its own parts
        before = _implementation(part)
        if before == wanted:
            continue
        problem = ""
        try:
            switch(wanted)
        except (ValueError, ImportError) as error:
            problem = f" ({' '.join(str(error).split())[:200]})"
        if problem or _implementation(part) != wanted:
            raise InputError(
                f"attention={choice!r}: the attention of {type(part).__name__} is its own ({before}) and cannot be switched "
                f"to {wanted}{problem}. Set attention='auto'."
            )
        if before is not None:
            undo.append(partial(switch, before))
    return bool(inside)


def _implementation(part: nn.Module) -> str | None:
    name = getattr(getattr(part, "config", None), "_attn_implementation", None)
    return name if isinstance(name, str) else None
