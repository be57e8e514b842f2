"""Attention kernels: torch's fused scaled-dot-product attention in place of one that holds every score.

Eager attention saves the score matrix and its softmax: heads x queries x keys a sample, which grows with the square of the
sequence. The fused kernels (flash, memory-efficient) never hold it and are faster. `sdpa` switches a model's own eager
path to torch's function, which takes the best kernel that can run (on CPU with attention dropout that is the one that
builds the matrix); `flash` allows only the flash kernel, and stops with the reason where that cannot run; `eager` holds
everything, as a reference or for a mask the kernels refuse.

Models are switched by what they offer: transformers' `set_attn_implementation`, timm's `fused_attn` attribute; models that
call torch's function are steered by `torch.nn.attention.sdpa_kernel`. Where there is no attention the field has no effect,
and says so. Fidelity: exact up to reordering. Source: Dao et al., FlashAttention, 2022 (arXiv:2205.14135); torch SDPA.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from snugfit.errors import InputError, SnugfitWarning
from snugfit.techniques.base import ModelTechnique

_KERNELS = {"eager": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}


class Attention(ModelTechnique):
    """Switches the model's own attention and limits torch's choice of kernels."""

    field = "attention"

    def change(self, model: nn.Module) -> None:
        """Switches what the model offers to switch; warns when it has no attention."""
        choice = self.setup.recipe.attention
        found = any(isinstance(module, nn.MultiheadAttention) for module in model.modules())
        implementation = getattr(model, "set_attn_implementation", None)
        if callable(implementation):
            implementation("eager" if choice == "eager" else "sdpa")
            found = True
        for module in model.modules():
            if isinstance(getattr(module, "fused_attn", None), bool):
                setattr(module, "fused_attn", choice != "eager")  # noqa: B010 - Module declares no such attribute
                found = True
        if not found and not any("attention" in type(module).__name__.lower() for module in model.modules()):
            warnings.warn(
                f"attention={choice!r} has no effect: {type(model).__name__} has no attention.",
                SnugfitWarning,
                stacklevel=2,
            )

    def around_step(self) -> AbstractContextManager[Any]:
        """Returns the context that limits torch's kernels, in backward as well: checkpointing computes there again."""
        choice = self.setup.recipe.attention
        return _only(choice) if choice in _KERNELS else nullcontext()


@contextmanager
def _only(choice: str) -> Iterator[None]:
    """Allows one kernel, and says so in our words where it cannot run."""
    try:
        with sdpa_kernel(_KERNELS[choice]):
            yield
    except RuntimeError as error:
        if "No available kernel" not in str(error):
            raise
        raise InputError(
            f"attention={choice!r}: the {choice} kernel cannot run here; flash needs 16-bit tensors on a CUDA device (or no "
            "attention dropout on CPU) and no mask. Use attention='sdpa', which takes the best kernel that can."
        ) from error
