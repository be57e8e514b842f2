"""cuDNN's recurrent layers computed by torch's own ones for the processor, in float32 at least.

The reserve holds the seed of the masks between layers, so backward draws the same ones again.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from snugfit.operators.recurrent_kernels import reserve_bytes

_BY_MODE: tuple[Any, ...] = (torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru)
_SEED_BYTES = 8


def forward(
    given: Tensor, weights: Sequence[Tensor], each: int, flat: Tensor | None, state: Tensor, cell: Tensor | None,
    mode: int, hidden: int, projected: int, layers: int, *settings: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Computes `_cudnn_rnn`."""
    seed = int(torch.randint(2**62, ()))
    made = _layers(seed, given, weights, each, state, cell, mode, layers, *settings)
    output, states, *cells = (one.to(given.dtype) for one in made)
    reserve = torch.zeros(reserve_bytes(given, state, mode, layers), dtype=torch.uint8)
    reserve[:_SEED_BYTES] = torch.tensor([seed]).view(torch.uint8)
    return output, states, cells[0] if cells else given.new_empty(0), reserve, given.new_empty(0)


def backward(
    given: Tensor, weights: Sequence[Tensor], each: int, flat: Tensor, state: Tensor, cell: Tensor | None,
    output: Tensor, grad_output: Tensor | None, grad_state: Tensor | None, grad_cell: Tensor | None,
    mode: int, hidden: int, projected: int, layers: int, *settings: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Computes `_cudnn_rnn_backward`."""
    *settings, reserve, mask = settings  # type: ignore[assignment]
    seed = int(reserve[:_SEED_BYTES].clone().view(torch.int64))
    held = [None if one is None else one.detach().requires_grad_() for one in (given, state, cell, *weights)]

    def gradients() -> tuple[Any, ...]:
        made = _layers(seed, held[0], held[3:], each, held[1], held[2], mode, layers, *settings)
        grads = (grad_output, grad_state, grad_cell)
        pairs = [(one, grad.to(one.dtype)) for one, grad in zip(made, grads, strict=False) if grad is not None]
        ends, of_ends = zip(*pairs, strict=True)
        wanted = [one for one in held if one is not None]
        return torch.autograd.grad(ends, wanted, of_ends, allow_unused=True, materialize_grads=True)

    with ThreadPoolExecutor(1) as thread:  # the card's own thread is inside of an operator, below autograd
        found = iter(thread.submit(gradients).result())
    of_given, of_state, of_cell, *of_weights = (None if one is None else next(found) for one in held)
    return of_given if mask[0] else None, of_state, of_cell, of_weights if mask[3] else []


def _layers(
    seed: int, given: Any, weights: Sequence[Any], each: int, state: Any, cell: Any, mode: int, layers: int,
    batch_first: bool, dropout: float, train: bool, both: bool, sizes: Sequence[int], *_: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    def wide(one: Tensor) -> Tensor:
        return one if one.dtype == torch.float64 else one.float()

    states = wide(state) if cell is None else [wide(state), wide(cell)]
    params = [wide(one) for one in weights]
    settings = each == 4, layers, dropout, train, both
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        if sizes:
            return tuple(_BY_MODE[mode](wide(given), torch.tensor(sizes), states, params, *settings))
        return tuple(_BY_MODE[mode](wide(given), states, params, *settings, batch_first))
