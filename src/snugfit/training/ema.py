"""Exponential moving averages of the weights: kept beside the optimizer's state, evaluated with, and what a run leaves.

The average of a parameter is one more entry (`ema`) of its state in the optimizer, updated by torch's own hook behind each
`step`. So it is wherever that state is: on the host with `offload_optimizer`, in shares with `shard`, in every checkpoint,
and in every prediction. Between two steps the averages and the weights change places, value by value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from snugfit.errors import InputError

_EMA = "ema"


class AveragedWeights:
    """Averages what an optimizer updates; also for a training loop of your own.

    Args:
        optimizer: Any optimizer of torch.optim's kind; its parameters are held in 32 or 64 bits.
        decay: What is kept of the average at each step, more than 0 and less than 1; 0.999 forgets within some thousand.

    Raises:
        InputError: Weights are held in 16 bits, in which an average would stand still.

    Source: Polyak and Juditsky, 1992 (doi.org/10.1137/0330046); as `torch.optim.swa_utils.get_ema_multi_avg_fn`.
    """

    def __init__(self, optimizer: Optimizer, decay: float) -> None:
        short = {weight.dtype for weight in _weights(optimizer) if weight.dtype.itemsize < 4}
        if short:
            names = ", ".join(sorted(str(one).removeprefix("torch.") for one in short))
            raise InputError(
                f"ema_decay={decay:g} averages weights, and those of this run are held in {names}, in which so small a "
                "change is lost. Use precision bf16-mixed or fp32, or leave ema_decay out."
            )
        self.optimizer, self._decay = optimizer, decay
        self._room: dict[Tensor, Tensor] = {}
        optimizer.register_step_pre_hook(self._make_room)
        optimizer.register_step_post_hook(self._follow)

    def _make_room(self, optimizer: Optimizer, *_: Any) -> None:
        """Takes the memory of averages that are not there yet before the step changes anything: it may run out here.

        It is no state of the optimizer yet, which would look as if the parameter had had its first step.
        """
        for weight in _moving(optimizer):
            if _EMA not in optimizer.state.get(weight, {}) and weight not in self._room:
                self._room[weight] = torch.empty_like(weight)

    @torch.no_grad()
    def _follow(self, optimizer: Optimizer, *_: Any) -> None:
        """Moves the averages of the parameters that were just updated; an optimizer may have only some at the moment."""
        averages, weights = list[Tensor](), list[Tensor]()
        for weight in _moving(optimizer):
            state = optimizer.state[weight]
            if _EMA in state:
                averages.append(state[_EMA])
                weights.append(weight.detach())
            else:
                room = self._room.pop(weight, None)
                # A closure makes gradients inside of the step, before which no room could be taken for them.
                state[_EMA] = weight.detach().clone() if room is None else room.copy_(weight)
        bad = getattr(optimizer, "found_inf", None)  # a flag on the device that may have left the step out
        if not averages:
            return
        if bad is None:
            torch._foreach_lerp_(averages, weights, 1 - self._decay)
            return
        share = (1 - bad) * (1 - self._decay)
        for average, weight in zip(averages, weights, strict=True):
            average.lerp_(weight, share.to(average.dtype))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The parameters hold their averages while the context is open."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        """Lets parameters and averages change places; takes memory for one parameter."""
        pairs = [
            (weight.detach(), state[_EMA])
            for weight in _weights(self.optimizer)
            if _EMA in (state := self.optimizer.state.get(weight, {}))
        ]
        rooms: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        for weight, _ in sorted(pairs, key=lambda pair: -pair[0].numel()):  # all of it is there before anything changes
            rooms.setdefault((weight.device, weight.dtype), torch.empty_like(weight).view(-1))
        for weight, average in pairs:
            room = rooms[weight.device, weight.dtype][: weight.numel()].view(weight.shape)
            room.copy_(weight)
            weight.copy_(average)
            average.copy_(room)


def _moving(optimizer: Optimizer) -> list[Tensor]:
    return [weight for weight in _weights(optimizer) if weight.grad is not None]


def _weights(optimizer: Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]
