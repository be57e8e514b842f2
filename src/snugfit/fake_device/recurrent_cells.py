"""Cells of recurrent networks called step by step (`nn.LSTMCell`, `nn.GRUCell`): a CUDA kernel without a fake version.

Source: `aten/src/ATen/native/cuda/RNN.cu`, _thnn_fused_lstm_cell_cuda, _thnn_fused_gru_cell_cuda and their backward; the
workspace holds the gates that backward needs (4 for LSTM, 5 for GRU).
"""

from __future__ import annotations

from typing import Any

import torch

from snugfit import private_torch

Tensor = torch.Tensor
_GRU_GATES, _GRU_KEPT = 3, 5


def register() -> None:
    """Puts the fake versions in place; only in the worker."""
    aten = torch.ops.aten
    private_torch.replace_fake(aten._thnn_fused_lstm_cell.default, lstm_cell)
    private_torch.replace_fake(aten._thnn_fused_lstm_cell_backward_impl.default, lstm_cell_backward)
    private_torch.replace_fake(aten._thnn_fused_gru_cell.default, gru_cell)
    private_torch.replace_fake(aten._thnn_fused_gru_cell_backward.default, gru_cell_backward)


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
