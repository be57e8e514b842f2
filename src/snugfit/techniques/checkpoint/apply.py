"""Blocks that keep only their inputs and compute the rest again in backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.utils.checkpoint import CheckpointError

from snugfit.errors import InputError, warn
from snugfit.techniques.base import ModelTechnique, Setup, WrappedForward
from snugfit.techniques.blocks import chosen_blocks
from snugfit.techniques.calls import Calls
from snugfit.techniques.checkpoint.checkpointed import WITHOUT, Checkpointed, allow_overwriting, forbid_overwriting
from snugfit.techniques.offload_activations.apply import ActivationOffload


class Checkpointing(ModelTechnique):
    """Wraps the forward method of the chosen blocks."""

    field = "checkpoint"
    stage = "blocks"
    wraps = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        offloaded = setup.recipe.offload_activations == "checkpoints"
        self._offload = ActivationOffload(setup) if offloaded else None
        self._calls = Calls(setup, self.field)

    def change(self, model: nn.Module) -> None:
        """Wraps the blocks; state_dict keys and the caller's hooks stay."""
        recipe = self.setup.recipe
        own = self_checkpointing(model)
        if own:
            if recipe.checkpoint != "all" or self._offload:
                raise InputError(
                    f"checkpoint={recipe.checkpoint!r}, but the model already checkpoints itself ({own}). Switch that off "
                    f"(set {own}=False, or the model's own method for it), or set checkpoint='none'."
                )
            warn(f"the model already checkpoints itself ({own}); its blocks are not wrapped twice.")
            return
        if self._offload:
            self._offload.watch(model)
        selective = recipe.checkpoint == "selective"
        for name, block in chosen_blocks(model, recipe.checkpoint, field="checkpoint").items():
            if selective and recipe.compile != "none":
                forbid_overwriting(block)
            around = Checkpointed(name, block, self.setup.device, selective, self._offload)
            around.alone = self.setup.ranks is None
            block.forward = WrappedForward(block, around)
            self._calls.watch(name, block, around)

    @classmethod
    def undo(cls, model: nn.Module) -> None:
        """Gives activation modules the choice back that the model itself has made."""
        allow_overwriting(model)

    @contextmanager
    def around_step(self) -> Iterator[None]:
        """Turns torch's error about a block that was not recomputed as it was into a sentence a person can use."""
        try:
            with self._calls.of_step():
                yield
        except CheckpointError as error:
            raise InputError(
                f"checkpoint: block {Checkpointed.last_again!r} computes something else when it is run again, so its "
                f"gradients would be wrong. Nothing was updated. {WITHOUT}"
            ) from error

    def around_training_forward(self) -> AbstractContextManager[Any]:
        """Starts a new pass of the copies to the host, where block inputs move there."""
        self._calls.begin()
        return self._offload.new_pass() if self._offload else nullcontext()


def self_checkpointing(model: nn.Module) -> str | None:
    """Returns the name of the attribute by which a model already checkpoints itself, or None.

    Such as `encoder.gradient_checkpointing`; the names are those of transformers, timm and torchvision.
    """
    for name, module in model.named_modules():
        for attribute in ("gradient_checkpointing", "grad_checkpointing", "memory_efficient"):
            if getattr(module, attribute, False) is True:
                return f"{name}.{attribute}" if name else attribute
    return None
