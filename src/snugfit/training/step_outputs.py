"""What a step gives back beside its loss: the model's outputs and its named losses, of all microbatches together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from snugfit.errors import InputError, about
from snugfit.techniques.batches import map_tensors
from snugfit.techniques.loss_impl.deferred_logits import DeferredLogits
from snugfit.training.model_call import joined


@dataclasses.dataclass(frozen=True, slots=True)
class StepOutputs:
    """What `Trainer.step(batch, outputs=True)` returns; nothing of it has a graph."""

    loss: Tensor
    """The batch's loss before the update: 0-dim."""
    outputs: Any
    """What the model returned, microbatches joined along dimension 0, in the order of the batch; of several processes that
    of this one's share."""
    losses: dict[str, Tensor]
    """Name -> number, 0-dim: what the loss function returned beside the loss, and the numbers (0-dim tensors) of a model
    that returns a mapping. Microbatches are weighted as their losses are."""


class KeptOutputs:
    """The outputs of the passes of one step so far."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forgets what a failed attempt has left."""
        self._outputs: list[Any] = []
        self._named: list[dict[str, Tensor]] = []

    def take(self, output: Any, named: Mapping[str, Tensor]) -> None:
        """Stores what a microbatch gave: the output, and the losses that the loss function named."""
        numbers = output.items() if isinstance(output, Mapping) else ()
        own = {name: one for name, one in numbers if isinstance(one, Tensor) and one.dim() == 0}
        self._outputs.append(map_tensors(output, _detached, lambda value: isinstance(value, Tensor | DeferredLogits)))
        self._named.append({name: one.detach() for name, one in {**own, **named}.items()})

    def join(self, weights: Sequence[float | Tensor], *, mean: bool) -> None:
        """Joins the pieces, which are dropped then; `InputError` where they cannot be joined.

        `weights`: shares of the microbatches; passes behind them were those of another process.
        `mean`: whether the shares are made to add up to 1.
        """
        outputs, named = self._outputs[: len(weights)], self._named[: len(weights)]
        self.begin()
        if not outputs:
            return
        if any(one.keys() != named[0].keys() for one in named):
            names = sorted({name for one in named for name in one})
            raise InputError(f"loss= names {', '.join(names)}, but not all of them for every microbatch; {_ADVICE}.")
        total = sum(weights) if mean else 1.0
        if isinstance(total, Tensor) or total not in (0.0, 1.0):
            weights = [weight / total for weight in weights]
        self._outputs = [joined(outputs, list(weights), _ADVICE)]
        self._named = [joined(named, list(weights), _ADVICE)]

    def beside(self, loss: Tensor) -> StepOutputs:
        """Returns `StepOutputs` of the batch's loss and what was joined."""
        return StepOutputs(loss, *(self._outputs or [None]), *(self._named or [{}]))


_ADVICE = "leave outputs=True out, or microbatch_size"


def _detached(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    with about("loss_impl"):
        raise InputError(
            f"outputs=True asks for what the model returns, and loss_impl={value.impl!r} never computes its logits. Set "
            "loss_impl='full', or leave outputs out."
        )
