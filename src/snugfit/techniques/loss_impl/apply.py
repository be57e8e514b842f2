"""The loss of a language model, computed from the input of its head."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from snugfit.attributes import attributes_set
from snugfit.errors import InputError, warn
from snugfit.techniques.base import ModelTechnique, Setup, WrappedForward
from snugfit.techniques.loss_impl.deferred_logits import DeferredLogits, LossFunction, product_dtype
from snugfit.techniques.loss_impl.linear_cross_entropy import linear_cross_entropy, piece_count


class LossImpl(ModelTechnique):
    """Puts deferred logits in the place of the head's output."""

    field = "loss_impl"
    stage = "calls"  # after adapters, which may sit on the head
    wraps = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.active = False  # whether a forward pass of training or evaluation is under way

    @classmethod
    def may_gain(cls, model: nn.Module) -> bool:
        """Returns whether a model has a head over a vocabulary."""
        try:
            return _head(model) is not None
        except Exception:  # the model's own code; what it says is told where this loss is asked for
            return True

    def change(self, model: nn.Module) -> None:
        """Wraps the head, and the model around it."""
        recipe = self.setup.recipe
        impl = recipe.loss_impl
        if recipe.compile != "none":
            raise InputError(
                f"loss_impl={impl!r} contradicts compile={recipe.compile!r}: logits that are never computed do not trace, "
                "and the compiler fuses the loss by itself. Leave one of them out."
            )
        loss: LossFunction = linear_cross_entropy
        if impl == "fused":
            from snugfit.techniques.loss_impl.liger import fused_loss

            loss = fused_loss(self.setup)
        name, head = output_head(model, impl)
        if piece_count(head.weight) == 1:
            warn(
                f"loss_impl={impl!r} has no effect: the head {name!r} has only {head.out_features} outputs for hidden "
                f"states of {head.in_features}, so its logits are no larger than those."
            )
            return
        head.forward = WrappedForward(head, functools.partial(self._deferred, head, loss))  # type: ignore[method-assign]
        model.forward = WrappedForward(model, self._with_output)

    def _deferred(self, head: nn.Linear, loss: LossFunction, forward: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns deferred logits in place of the head's output; outside of our forward passes the head runs as usual."""
        if not self.active:
            return forward(*args, **kwargs)
        hidden = args[0] if args else kwargs["input"]
        return DeferredLogits(hidden, head, loss, self.setup.recipe.loss_impl, product_dtype(hidden))

    def _with_output(self, forward: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs the model; where it is evaluated without a loss, its logits are computed at the end."""
        output = forward(*args, **kwargs)
        return output if torch.is_grad_enabled() or not self.active else _computed(output)

    def around_forward(self) -> AbstractContextManager[None]:
        """Returns the context in which the head defers its logits."""
        return attributes_set([self], active=True)


def _computed(output: Any) -> Any:
    """An output with ordinary tensors in place of deferred logits that no loss was taken of."""
    if isinstance(output, DeferredLogits):
        return output if output.use.in_loss else output.computed()
    if isinstance(output, Mapping):
        for key, value in output.items():
            if isinstance(value, DeferredLogits) and not value.use.in_loss:
                output[key] = value.computed()  # type: ignore[index]
        return output
    if isinstance(output, tuple | list) and any(isinstance(value, DeferredLogits) for value in output):
        values = [_computed(value) for value in output]
        return type(output)(*values) if hasattr(output, "_fields") else type(output)(values)
    return output


def output_head(model: nn.Module, impl: str) -> tuple[str, nn.Linear]:
    """Returns the name and module of the layer that scores words; `InputError` unless it is a plain linear layer."""
    names = {module: name for name, module in model.named_modules()}
    head = _head(model)
    if head is None:
        raise InputError(
            f"loss_impl={impl!r} found no head over a vocabulary in {type(model).__name__}: it names none by "
            "get_output_embeddings(), and not exactly one linear layer has as many outputs as the largest embedding has "
            "words. Set loss_impl='full'."
        )
    name = names.get(head, type(head).__name__)
    if not isinstance(head, nn.Linear) or type(head).forward is not nn.Linear.forward:
        adapter = hasattr(head, "base_layer")
        raise InputError(
            f"loss_impl={impl!r}: the head {name!r} is a {type(head).__name__}"
            f"{' with an adapter' if adapter else ''}, no plain linear layer, so its product cannot be taken apart. "
            f"{'Leave adapter_head out, or set' if adapter else 'Set'} loss_impl='full'."
        )
    return name, head


def _head(model: nn.Module) -> nn.Module | None:
    """The layer that scores words: what the model says, or else what its shapes say."""
    given = getattr(model, "get_output_embeddings", None)
    head = given() if callable(given) else None
    return _by_structure(model) if head is None else head


def _by_structure(model: nn.Module) -> nn.Module | None:
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    if not embeddings:
        return None
    words = max(embedding.num_embeddings for embedding in embeddings)
    found = [module for module in model.modules() if isinstance(module, nn.Linear) and module.out_features == words]
    return found[0] if len(found) == 1 else None
