"""Weights that a backward pass gives a gradient and that no optimizer has: a loss with weights of its own, for example.

By a name, the optimizer trains the model's parameters. What else gets a gradient in the step would never move, and pile up
a gradient, without a word: a learned temperature, the head inside of a loss, a network that `forward=` calls. Only its owner
knows whether it is to be trained. So the graph of a loss is looked through before its backward pass, and the step refused;
a teacher under `no_grad`, frozen weights and what another trainer trains are no case of it. An optimizer that was given
says by itself what is trained, as it does in a plain loop.

Looking costs a millisecond or a few, so it is done in steps 1, 2, 4, 8 and so on: a part of the loss that begins later is
found at the latest when the run has become twice as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from snugfit.errors import InputError, listed
from snugfit.techniques.reachable import captured_modules


def is_due(step: int) -> bool:
    """Returns whether the graph is searched in this step: in 1, 2, 4, 8 and so on."""
    return step & (step - 1) == 0


def check_claimed(loss: Tensor, claimed: Iterable[nn.Parameter], optimizer: str, parts: Sequence[object]) -> None:
    """Raises `InputError` where a tensor would get a gradient and no optimizer has it.

    `claimed`: what this trainer and others have.
    `parts`: model and functions that run, to find names in.
    """
    known = {id(weight) for weight in claimed}
    strange = {id(leaf): leaf for leaf in leaves(loss) if isinstance(leaf, nn.Parameter) and id(leaf) not in known}
    if not strange:
        return
    held = captured_modules(*parts)
    names = [
        next(
            (f"{type(one).__name__}.{name}" for one in held for name, its in one.named_parameters() if its is leaf),
            None,
        )
        or f"a parameter of shape {tuple(leaf.shape)}"
        for leaf in strange.values()
    ]
    raise InputError(
        f"{listed(names)} would get a gradient in this step and never move: optimizer={optimizer!r}, by its name, trains "
        "what the model had when it was prepared, and this is none of it. To train it too, give an optimizer of both: "
        "optimizer=torch.optim.AdamW([*model.parameters(), *others], lr=...). To leave it as it is, freeze it: "
        "requires_grad_(False). Where another optimizer trains it, give this one as an object as well: "
        "torch.optim.AdamW(model.parameters(), lr=...)."
    )


def leaves(loss: Tensor) -> Iterator[Tensor]:
    """Yields the tensors that backward of a loss leaves a gradient on."""
    waiting: list[Any] = [loss.grad_fn]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting.extend(following for following, _ in node.next_functions)
