"""How a batch reaches the model, what of its output is the loss, and how outputs of pieces make one output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.errors import InputError

Loss = Callable[[Any, Any], Tensor]
Forward = Callable[[nn.Module, Any], Any]


def output_of(model: nn.Module, batch: Any, forward: Forward | None) -> Any:
    """Returns a model's output for a batch.

    Args:
        model: The model.
        batch: A tensor, a tuple (the model gets its first element), a dict (the model gets its items), or anything that
            `forward` knows.
        forward: Function of (model, batch), or None for the usual ways.

    Raises:
        InputError: The batch is of another kind.
    """
    if forward is not None:
        return forward(model, batch)
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, tuple | list):
        return model(batch[0])
    if isinstance(batch, Tensor):
        return model(batch)
    raise InputError(
        f"the batch is a {type(batch).__name__}; give a tensor, a tuple (the model gets its first element), a dict (the "
        "model gets its items), or forward=fn(model, batch)."
    )


def loss_of(output: Any, batch: Any, loss: Loss | None) -> Tensor:
    """Returns the loss of a microbatch.

    Args:
        output: The model's output.
        batch: The microbatch.
        loss: Function of (output, batch), or None where the model returns its loss.

    Returns:
        0-dim tensor with a graph.

    Raises:
        InputError: It is no number, or depends on no trained parameter.
    """
    if loss is not None:
        found: Any = loss(output, batch)
    else:
        found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
    if not isinstance(found, Tensor) or found.dim() != 0:
        kind = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        source = "loss= returns" if loss is not None else "no loss= was given, and the model returns"
        raise InputError(f"{source} {kind}; the loss must be one number (a 0-dim tensor), for example F.cross_entropy.")
    if not found.requires_grad:
        raise InputError(
            "the loss does not depend on any trained parameter, so there is no gradient. Look for detach(), no_grad() "
            "or .item() in forward= and loss=, and for frozen parameters."
        )
    return found


def joined(outputs: list[Any], weights: list[float | Tensor]) -> Any:
    """Returns the output for a batch from those for its pieces.

    Args:
        outputs: The pieces' outputs, of one structure: tensors, or tuples, lists and mappings of such.
        weights: The pieces' shares, for outputs that are one number (a loss).

    Raises:
        InputError: The outputs hold something that cannot be joined.
    """
    first = outputs[0]
    if len(outputs) == 1 or first is None:
        return first
    if isinstance(first, Tensor):
        if first.dim():
            return torch.cat(outputs)
        return sum(output * weight for output, weight in zip(outputs, weights, strict=True))
    if isinstance(first, Mapping):
        parts = {name: joined([output[name] for output in outputs], weights) for name in first}
        return parts if type(first) is dict else type(first)(**parts)
    if isinstance(first, tuple | list):
        items = [joined([output[at] for output in outputs], weights) for at in range(len(first))]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    raise InputError(
        f"the model returns a {type(first).__name__}, which cannot be joined from pieces; evaluate smaller batches."
    )
