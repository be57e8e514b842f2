"""How a batch reaches the model, what of its output is the loss, and how outputs of pieces make one output.

A loss is a function of (output, batch). The losses of torch itself, which take (output, target), are understood as well:
of a batch that is a tuple or list, the target is its second element.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from snugfit.errors import InputError, in_words

Loss = Callable[[Any, Any], Tensor]
Forward = Callable[[nn.Module, Any], Any]


def output_of(model: nn.Module, batch: Any, forward: Forward | None) -> Any:
    """Returns a model's output for a batch; `InputError` for batches of another kind.

    `batch`: a tensor or packed sequence, a tuple or list (the model gets its first element), a dict (the model gets its
    items), or anything that `forward` knows.
    """
    if forward is not None:
        return forward(model, batch)
    if isinstance(batch, Mapping):
        return _called(model, (), batch)
    if isinstance(batch, Tensor | PackedSequence):
        return _called(model, (batch,), {})
    if isinstance(batch, tuple | list):
        return _called(model, batch[:1], {})
    raise InputError(
        f"the batch is a {type(batch).__name__}; give a tensor, a tuple or list (the model gets its first element), a dict "
        "(the model gets its items), or forward=fn(model, batch)."
    )


def _called(model: nn.Module, args: Any, keywords: Mapping[str, Any]) -> Any:
    """Calls the model; where the batch does not match its arguments, the error says so in words."""
    try:
        return model(*args, **keywords)
    except TypeError as error:
        problem = _not_bound(model.forward, args, keywords)
        if problem is None:
            raise
        given = f"the items {', '.join(map(str, keywords))} of the dict batch" if keywords or not args else "the batch"
        raise InputError(
            f"the model gets {given}, but its forward does not take them ({problem}). Say how a batch reaches the "
            "model: forward=lambda model, batch: model(batch['x']), for example."
        ) from error


def _not_bound(function: Callable[..., Any], args: Any, keywords: Mapping[str, Any]) -> str | None:
    """Returns why a function does not take these arguments; None where it does, or where nobody can say."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        return str(error)
    return None


def loss_value(loss: Loss, output: Any, batch: Any) -> Any:
    """Returns the loss alone, without the numbers that a loss function may name beside it."""
    return _parts(loss_returned(loss, output, batch))[0]


def _parts(found: Any) -> tuple[Any, Mapping[str, Any]]:
    """A loss, and the named numbers beside it: none, or the second of (loss, {name: number})."""
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping):
        return found
    return found, {}


def loss_returned(loss: Loss, output: Any, batch: Any) -> Any:
    """Calls a loss function; one that takes a target gets the second element of the batch."""
    name = getattr(loss, "__name__", type(loss).__name__)
    right = f"loss=lambda output, batch: {'F.' if callable(getattr(F, name, None)) else ''}{name}(output, batch[1])"
    if takes_target(loss):
        if not isinstance(batch, tuple | list) or isinstance(batch, PackedSequence) or len(batch) < 2:
            labels = "['labels']"
            raise InputError(
                f"loss={name} takes (output, target), and of a batch that is a {type(batch).__name__} nobody knows the "
                f"target. Give a function of (output, batch), such as {right.replace('[1]', labels)}."
            )
        return loss(output, batch[1])
    try:
        return loss(output, batch)
    except (TypeError, AttributeError) as error:
        problem = _not_bound(loss, (output, batch), {})
        if problem is None and not isinstance(loss, nn.Module):
            raise
        raise InputError(
            f"loss={name} was called with (output, batch), the batch as a whole, and failed: "
            f"{problem or in_words(error)}. Where it takes a target, write {right}."
        ) from error


def takes_target(loss: object) -> bool:
    """Returns whether a loss is one of torch's own, which take (output, target).

    `loss`: a module of torch.nn, a function of torch.nn.functional, a functools.partial of one, or anything else.
    """
    if isinstance(loss, functools.partial):
        return takes_target(loss.func)
    if isinstance(loss, nn.Module):
        return type(loss).__module__ == nn.CrossEntropyLoss.__module__  # not a subclass, whose arguments are its own
    return getattr(F, getattr(loss, "__name__", ""), None) is loss


def loss_of(output: Any, batch: Any, loss: Loss | None) -> Tensor:
    """Returns the loss of a microbatch, as `losses_of`."""
    return losses_of(output, batch, loss)[0]


def losses_of(output: Any, batch: Any, loss: Loss | None) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the loss of a microbatch, and the numbers that a loss function names beside it.

    `loss`: function of (output, batch), which may return (loss, {name: number}); a loss of torch.nn; or None where the
    model returns its loss.
    The loss is a 0-dim tensor with a graph; the others are name -> 0-dim tensor without one.
    """
    named: Mapping[str, Any] = {}
    if loss is not None:
        found, named = _parts(loss_returned(loss, output, batch))
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
    return found, {name: _number(name, one, found) for name, one in named.items()}


def _number(name: str, one: Any, beside: Tensor) -> Tensor:
    if isinstance(one, int | float):
        return torch.tensor(float(one), device=beside.device)
    if isinstance(one, Tensor) and one.dim() == 0:
        return one.detach()
    kind = f"shape {tuple(one.shape)}" if isinstance(one, Tensor) else f"a {type(one).__name__}"
    raise InputError(
        f"loss= returns (loss, names), and {name!r} is {kind}; give numbers (0-dim tensors), one for each name."
    )


def joined(outputs: list[Any], weights: list[float | Tensor], advice: str = "evaluate smaller batches") -> Any:
    """Returns the output for a batch from those for its pieces; `InputError` where they cannot be joined.

    `outputs`: the pieces' outputs, of one structure: tensors, or tuples, lists and mappings of such.
    `weights`: the pieces' shares, for outputs that are one number (a loss).
    """
    first = outputs[0]
    if len(outputs) == 1 or first is None:
        return first
    if isinstance(first, Tensor):
        if not first.dim():
            return sum(_weighted(output, weight) for output, weight in zip(outputs, weights, strict=True))
        shapes = {tuple(output.shape[1:]) for output in outputs}
        if len(shapes) > 1:
            raise InputError(f"outputs of microbatches of shapes (samples, *{sorted(shapes)}) do not join; {advice}.")
        return torch.cat(outputs)
    if isinstance(first, Mapping):
        parts = {name: joined([output[name] for output in outputs], weights, advice) for name in first}
        return parts if type(first) is dict else type(first)(**parts)
    if isinstance(first, tuple | list):
        items = [joined([output[at] for output in outputs], weights, advice) for at in range(len(first))]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    raise InputError(f"the model returns a {type(first).__name__}, which cannot be joined from pieces; {advice}.")


def _weighted(output: Tensor, weight: float | Tensor) -> Tensor:
    """A piece's part of a number; zero for a piece that does not count, whose number may be NaN."""
    if isinstance(weight, Tensor):
        return torch.where(weight == 0, torch.zeros_like(output), output * weight)
    return output * weight if weight else torch.zeros_like(output)
