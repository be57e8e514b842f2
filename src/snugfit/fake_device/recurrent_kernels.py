"""Recurrent layers (LSTM, GRU, RNN) on a simulated card: cuDNN runs them there, and its memory has no source.

cuDNN keeps a reserve for backward of a size that it alone can tell (`cudnnGetRNNTempSpaceSizes`). They are recorded as the
ordinary operators that torch takes without cuDNN, and the prediction says so. On cpu the machine is asked, as for any
operator (`cpu_operators.py`).
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

from snugfit.errors import SnugfitWarning
from snugfit.private_torch import dispatcher

CUDNN_WARNING = (
    "on CUDA, cuDNN runs recurrent layers (LSTM, GRU, RNN) and keeps memory for backward whose size only cuDNN knows; here "
    "they are predicted as ordinary operators, one step of the sequence after the other, so memory and time of these layers "
    "are an approximation. Measure a step on the card before relying on it."
)
_RUN_BY_CUDNN = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def _without_cudnn(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs recurrent layers by the operators that torch takes without cuDNN."""
    warnings.warn(CUDNN_WARNING, SnugfitWarning, stacklevel=2)
    return operator.decompose(*args, **kwargs)


def register() -> None:
    """Redirects the layers that cuDNN would run; call it once in a process."""
    for name in _RUN_BY_CUDNN:
        for overload in ("input", "data"):
            run = functools.partial(_without_cudnn, getattr(getattr(torch.ops.aten, name), overload))
            dispatcher.claim_kernel(f"aten::{name}.{overload}", run, "AutogradPrivateUse1")
