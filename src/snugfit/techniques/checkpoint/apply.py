"""Blocks that keep only their inputs and compute the rest again in backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from snugfit.attributes import attributes_set
from snugfit.errors import InputError, warn
from snugfit.private_torch import NormBase
from snugfit.techniques.base import ModelTechnique, Setup, WrappedForward
from snugfit.techniques.blocks import find_blocks, named_blocks
from snugfit.techniques.inplace.apply import set_inplace
from snugfit.techniques.offload_activations.apply import ActivationOffload

_aten = torch.ops.aten
KEPT_OPERATORS = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten.convolution.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
        _aten._scaled_dot_product_attention_math.default,
    }
)
"""What `selective` keeps: the operators whose work grows faster than their output."""


class Checkpointing(ModelTechnique):
    """Wraps the forward method of the chosen blocks."""

    field = "checkpoint"
    wraps = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        offloaded = setup.recipe.offload_activations == "checkpoints"
        self._offload = ActivationOffload(setup) if offloaded else None

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
        for block in chosen_blocks(model, recipe.checkpoint).values():
            if recipe.checkpoint == "selective":
                _forbid_overwriting(block)
            block.forward = WrappedForward(block, Checkpointed(block, recipe.checkpoint == "selective", self._offload))

    def around_training_forward(self) -> AbstractContextManager[Any]:
        """Starts a new pass of the copies to the host, where block inputs move there."""
        return self._offload.new_pass() if self._offload else nullcontext()


def chosen_blocks(model: nn.Module, choice: str | tuple[str, ...]) -> dict[str, nn.Module]:
    """Returns the blocks that a recipe's `checkpoint` field means.

    Args:
        model: The model.
        choice: The field: all, selective, every:N, blocks:K or names.

    Returns:
        Name -> block.

    Raises:
        InputError: No repeated blocks, fewer than K, or an unknown name.
    """
    if isinstance(choice, tuple):
        return named_blocks(model, choice, field="checkpoint")
    blocks = find_blocks(model)
    if not blocks:
        raise InputError(
            f"checkpoint={choice!r} found no repeated blocks in {type(model).__name__}: no container holds several modules "
            f"of one class. Name the modules instead, for example checkpoint={next(_with_children(model), 'features')!r}."
        )
    kind, _, number = choice.partition(":")
    if kind == "every":
        return {name: block for at, (name, block) in enumerate(blocks.items()) if at % int(number) == 0}
    if kind == "blocks":
        if int(number) > len(blocks):
            raise InputError(f"checkpoint={choice!r}, but the model has {len(blocks)} blocks; give at most that many.")
        return dict(list(blocks.items())[: int(number)])
    return blocks


def self_checkpointing(model: nn.Module) -> str | None:
    """Returns the name of the attribute by which a model already checkpoints itself, or None.

    Args:
        model: Any module.

    Returns:
        Such as `encoder.gradient_checkpointing`; the names are those of transformers, timm and torchvision.
    """
    for name, module in model.named_modules():
        for attribute in ("gradient_checkpointing", "grad_checkpointing", "memory_efficient"):
            if getattr(module, attribute, False) is True:
                return f"{name}.{attribute}" if name else attribute
    return None


class Checkpointed:
    """Runs a block's forward method so that only its inputs are kept."""

    def __init__(self, block: nn.Module, selective: bool, offload: ActivationOffload | None) -> None:
        self.selective = selective
        self.offload = offload
        self.norms = [
            module for module in block.modules() if isinstance(module, NormBase) and module.track_running_stats
        ]

    def __call__(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs the forward method."""
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        with self.offload.saving() if self.offload else nullcontext():
            # A compiled graph moves the statistics once by itself, and takes no context that is not a dispatch mode.
            if self.selective or (self.norms and not torch.compiler.is_compiling()):
                kwargs["context_fn"] = self._contexts
            if _copied(args) is args and all(_copied(one) is one for one in kwargs.values()):
                return checkpoint(forward, *args, use_reentrant=False, **kwargs)
            again = _Again(forward, args, {name: one for name, one in kwargs.items() if name != "context_fn"})
            return checkpoint(again, *_copied(args), use_reentrant=False, **_copied(kwargs))

    def _contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        if not self.selective:
            return nullcontext(), _still_statistics(self.norms)
        keep, recompute = create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]
        return keep, _still_statistics(self.norms, recompute)


class _Again:
    """A forward method whose lists and dicts may be changed by it, as HRNet's blocks do: run again with what they held."""

    def __init__(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._forward = forward
        self._first: tuple[tuple[Any, ...], dict[str, Any]] | None = (args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it: the first time on the caller's own containers, which see what it changes, then on copies."""
        if self._first is not None and not torch.compiler.is_compiling():
            (args, kwargs), self._first = self._first, None
            return self._forward(*args, **kwargs)
        return self._forward(*_copied(args), **_copied(kwargs))


def _copied(value: Any) -> Any:
    """A value with its lists and dicts copied; the same object where there is none in it."""
    if type(value) is list:
        return [_copied(one) for one in value]
    if type(value) is tuple:
        parts = tuple(_copied(one) for one in value)
        return value if all(one is other for one, other in zip(parts, value, strict=True)) else parts
    return {name: _copied(one) for name, one in value.items()} if type(value) is dict else value


def _forbid_overwriting(block: nn.Module) -> None:
    """Selective checkpointing keeps results of matmuls, and an in-place activation right behind one would spoil them."""
    for module in block.modules():
        if getattr(module, "inplace", False) is True:
            set_inplace(module, False)


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in KEPT_OPERATORS else CheckpointPolicy.PREFER_RECOMPUTE


@contextmanager
def _still_statistics(norms: list[Any], around: AbstractContextManager[Any] | None = None) -> Iterator[None]:
    """Lets batch norms normalise by the batch's statistics without moving the running ones a second time."""
    with attributes_set(norms, momentum=0.0, num_batches_tracked=None), around or nullcontext():
        yield


def _with_children(model: nn.Module) -> Iterator[str]:
    return (name for name, child in model.named_children() if any(True for _ in child.children()))
