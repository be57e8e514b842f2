"""Operators whose fake version torch lacks, or refuses what the real kernel takes: what they make, without values.

- *Connectionist temporal classification* (`ctc_loss`): its table of partial sums is as wide as the longest target. Lengths
  are values: targets that stand one after another are taken to be equally long, and those of a table to fill it, the most
  that they can be. Source: `ATen/native/LossCTC.cpp`, ctc_loss_cpu_template; the CUDA version makes the same table.
- *Matrix products of groups of rows* (`grouped_mm`), which mixtures of experts are made of: torch's version refuses float32
  (as of torch 2.14). The result depends on the number of groups alone, not on how many rows each gets, so nothing is assumed
  about the routing of tokens. Its rows are padded to 16 bytes.
  Source: `ATen/native/GroupedMMUtils.h`, create_grouped_gemm_output_tensor.
- *Cells of recurrent networks* called step by step (`nn.LSTMCell`, `nn.GRUCell`): the workspace holds the gates that
  backward needs (4 for LSTM, 5 for GRU). Source: `ATen/native/cuda/RNN.cu`, _thnn_fused_lstm_cell_cuda,
  _thnn_fused_gru_cell_cuda and their backward.
- *Random numbers*: torch draws exponential, Cauchy, geometric and log-normal ones without values only where no generator is
  given (as of torch 2.14), and has no version for binomial ones and Dirichlet's, which `Beta` distributions are made of.

All arguments are torch's; those that decide no size are not named.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from snugfit.private_torch import fake_tensors

_ALIGNMENT_BYTES = 16
_GRU_GATES, _GRU_KEPT = 3, 5


def register() -> None:
    """Registers the fake versions; only in a worker."""
    for operator, make in {
        "_ctc_loss.Tensor": ctc_loss,
        "_ctc_loss_backward.Tensor": ctc_loss_backward,
        "_grouped_mm.default": grouped_product,
        "_thnn_fused_lstm_cell.default": lstm_cell,
        "_thnn_fused_lstm_cell_backward_impl.default": lstm_cell_backward,
        "_thnn_fused_gru_cell.default": gru_cell,
        "_thnn_fused_gru_cell_backward.default": gru_cell_backward,
        "exponential_.default": drawn_in_place,
        "cauchy_.default": drawn_in_place,
        "geometric_.default": drawn_in_place,
        "log_normal_.default": drawn_in_place,
        "binomial.default": drawn_like,
        "_sample_dirichlet.default": drawn_like,
        "_dirichlet_grad.default": drawn_like,
    }.items():
        packet, _, overload = operator.partition(".")
        fake_tensors.replace_fake(getattr(getattr(torch.ops.aten, packet), overload), make)


def ctc_loss(log_probs: Tensor, targets: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    """Returns the losses and the table; log_probs are `[T, B, C]`, targets `[B, S]`, or all one after another."""
    moments, samples = log_probs.shape[:2]
    longest = targets.shape[1] if targets.dim() == 2 else -(-targets.shape[0] // max(samples, 1))
    return log_probs.new_empty(samples), log_probs.new_empty(samples, moments, 2 * longest + 1)


def ctc_loss_backward(grad: Tensor, log_probs: Tensor, *_: Any, **__: Any) -> Tensor:
    """Returns the gradient of `log_probs`."""
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def grouped_product(
    first: Tensor,
    second: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Returns the result; operands are rows or columns of all groups, ending at `offs`, or a matrix for each."""
    dtype = out_dtype or first.dtype
    inside, outside = first.shape[-1], second.shape[-2]
    if inside != outside:
        raise RuntimeError(f"grouped_mm: {inside} columns of the first operand meet {outside} rows of the second")
    rows, columns = first.shape[-2], second.shape[-1]
    apart = first.dim() == second.dim()
    groups = first.shape[0] if first.dim() == 3 else offs.shape[0] if offs is not None else second.shape[0]
    step = _ALIGNMENT_BYTES // dtype.itemsize
    padded = -(-columns // step) * step
    shape = (groups, rows, columns) if apart else (rows, columns)
    stride = (rows * padded, padded, 1) if apart else (padded, 1)
    return torch.empty_strided(shape, stride, dtype=dtype, device=first.device)


def lstm_cell(inputs: Tensor, hidden: Tensor, cell: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the new hidden state, the new cell state and the workspace."""
    return torch.empty_like(cell), torch.empty_like(cell), torch.empty_like(inputs)


def lstm_cell_backward(
    grad_hidden: Tensor | None, grad_cell: Tensor | None, cell: Tensor, new: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Returns the gradients of the gates, the cell state and the bias."""
    if grad_hidden is None and grad_cell is None:
        return None, None, None
    gates = torch.empty_like(workspace)
    return gates, torch.empty_like(cell), gates.sum(0) if has_bias else None


def gru_cell(inputs: Tensor, hidden: Tensor, state: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Returns the new hidden state and the workspace."""
    return torch.empty_like(state), state.new_empty((state.shape[0], _GRU_KEPT * state.shape[1]))


def gru_cell_backward(
    grad: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Returns the gradients of both sums of gates, of the hidden state and of both biases."""
    rows, size = workspace.shape[0], workspace.shape[1] // _GRU_KEPT
    first, second = (workspace.new_empty((rows, _GRU_GATES * size)) for _ in range(2))
    biases = (first.sum(0), second.sum(0)) if has_bias else (None, None)
    return first, second, torch.empty_like(grad), *biases


def drawn_in_place(written: Tensor, *_: Any, **__: Any) -> Tensor:
    """Returns the tensor that random numbers are written to."""
    return written


def drawn_like(first: Tensor, *_: Any, **__: Any) -> Tensor:
    """Returns random numbers, or their gradient: one for each of the first argument."""
    return torch.empty_like(first, memory_format=torch.contiguous_format)
