"""Recurrent layers (LSTM, GRU, RNN) on a simulated card, where cuDNN runs them: one operator forward and one backward.

What cuDNN keeps for backward and takes inside itself only cuDNN knows (`cudnnGetRNNTempSpaceSizes`). The sizes here were
read on an H100 (`kernels.jsonl` of torch 2.11): what is kept to the byte, what is inside within 3 % in 95 of 100 cases, and
12 % at worst. Seconds are those of the products alone, which is too few where steps are small. Layers with a projection are
recorded as the operators that torch takes without cuDNN. On cpu the machine is asked, as for any operator
(`cpu_operators.py`).
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from snugfit.device_kinds import SIMULATED
from snugfit.errors import SnugfitWarning
from snugfit.private_torch import dispatcher, fake_tensors, without_modes

CUDNN_WARNING = (
    "on CUDA, cuDNN runs recurrent layers (LSTM, GRU, RNN) and takes memory whose size only cuDNN knows; here it is what "
    "was read on one H100. Their time is that of the products alone, which is too little: measure a step on the card."
)
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""Layers that cuDNN runs, by its numbers."""
_KEPT = (2, 2, 6, 7)
"""Mode -> values that are kept for a step of one sample and hidden unit of a layer; all layers together keep one less."""
_STATES = (1, 1, 2, 1)
"""Mode -> states of a layer."""
_RESERVE_BYTES = 256
_LAYER_BYTES = 8 * 2**20
"""What is taken inside for each layer and direction, whatever its size."""
_MANY = (12, 12, 19, 19)
_SMALL = (200, 200, 64, 64)
"""Mode -> hidden units up to which an algorithm is taken that needs `_MANY` values for a step, sample and hidden unit."""
_HALF = (512, 512, 512, 2**31)
"""Mode -> hidden units from which that is so for one layer of more than one sample in 16 bits."""


def _by_cudnn(name: str, packed: bool, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs a recurrent layer as torch does with cuDNN. Source: `ATen/native/RNN.cpp`, _cudnn_impl and _rnn_impl."""
    warnings.warn(CUDNN_WARNING, SnugfitWarning, stacklevel=2)
    bound = dict(zip((one.name for one in operator._schema.arguments), args, strict=False)) | kwargs
    given, weights = bound["data" if packed else "input"], list(bound["params"])
    state, cell = bound["hx"] if name == "lstm" else (bound["hx"], None)
    layers = bound["num_layers"] * (2 if bound["bidirectional"] else 1)
    each = 4 if bound["has_biases"] else 2
    if len(weights) != layers * each:  # a projection
        return operator.decompose(*args, **kwargs)
    if torch.is_autocast_enabled(SIMULATED):
        dtype = torch.get_autocast_dtype(SIMULATED)
        given, state, *weights = (one.to(dtype) for one in (given, state, *weights))
        cell = None if cell is None else cell.to(dtype)
    sizes = []
    if packed:
        with without_modes():
            sizes = bound["batch_sizes"].tolist()
    output, hidden, cells, _, _ = torch.ops.aten._cudnn_rnn(
        given, weights, each, None, state, cell, _MODES[name], state.shape[-1], 0, bound["num_layers"],
        bound.get("batch_first", False), bound["dropout"], bound["train"], bound["bidirectional"], sizes, None,
    )  # fmt: skip
    return (output, hidden, cells) if name == "lstm" else (output, hidden)


def _forward(
    given: Tensor, weights: Sequence[Tensor], each: int, flat: Tensor | None, state: Tensor, cell: Tensor | None,
    mode: int, hidden: int, projected: int, layers: int, batch_first: bool, dropout: float, train: bool, both: bool,
    sizes: Sequence[int], dropout_state: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    width = hidden * (2 if both else 1)
    if sizes:
        output = given.new_empty((given.shape[0], width))
    else:
        output = _rows_first(given, width, batch_first)
    reserve = reserve_bytes(given, state, mode, layers)  # in evaluation too, where nobody keeps it
    cells = given.new_empty(0) if cell is None else torch.empty_like(cell, memory_format=torch.contiguous_format)
    states = torch.empty_like(state, memory_format=torch.contiguous_format)
    return output, states, cells, given.new_empty(reserve, dtype=torch.uint8), given.new_empty(0)


def _backward(
    given: Tensor, weights: Sequence[Tensor], each: int, flat: Tensor, state: Tensor, cell: Tensor | None,
    output: Tensor, *args: Any,
) -> tuple[Any, ...]:  # fmt: skip
    mask, batch_first, sizes = args[-1], args[7], args[11]
    gradient = None
    if mask[0]:
        gradient = torch.empty_like(given) if sizes else _rows_first(given, given.shape[-1], batch_first)
    states = [None if one is None else torch.empty_like(one) for one in (state, cell)]
    of_weights: list[Tensor] = []
    if mask[3]:  # views of one tensor, as cuDNN writes them
        ends = list(itertools.accumulate(one.numel() for one in weights))
        whole = given.new_empty(ends[-1])
        of_weights = [whole[end - one.numel() : end].view(one.shape) for one, end in zip(weights, ends, strict=True)]
    return gradient, *states, of_weights


def _rows_first(like: Tensor, width: int, batch_first: bool) -> Tensor:
    """A tensor as long as another one, of which cuDNN has the steps before the samples."""
    steps, samples = reversed(like.shape[:2]) if batch_first else like.shape[:2]
    made = like.new_empty((steps, samples, width))
    return made.transpose(0, 1) if batch_first else made


def reserve_bytes(given: Tensor, state: Tensor, mode: int, layers: int) -> int:
    """Bytes that are kept for backward; `state` is `[layers x directions, samples, hidden]`."""
    steps = given.numel() // given.shape[-1]
    kept = (_KEPT[mode] * layers - 1) * steps + _STATES[mode] * layers * state.shape[1]
    return int(kept * state.shape[0] // layers * state.shape[2] * given.element_size() + _RESERVE_BYTES)


def inside_bytes(args: Sequence[Any], kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """Bytes that cuDNN takes inside itself, forward or backward, and a copy of inputs whose steps are not first."""
    given, weights, state = args[0], args[1], args[4]
    at = 10 if isinstance(args[6], torch.Tensor) else 6  # backward has output and its gradients before
    mode, layers, batch_first, both = args[at], args[at + 3], args[at + 4], args[at + 7]
    samples, hidden = state.shape[1:]
    inputs, item = given.shape[-1], given.element_size()
    steps = given.numel() // inputs
    alone = layers == 1 and not both and samples > 1 and item == 2
    many = hidden <= _SMALL[mode] or (alone and hidden >= _HALF[mode])
    values = (_MANY[mode] if many else 3) + (9 if both else 0)
    turned = steps * inputs if batch_first and samples > 1 else 0
    found = sum(one.numel() for one in weights) + steps * (values * hidden + 3 * inputs) + turned
    found += (10 if samples > 1 else 3) * samples * hidden
    return [state.shape[0] * _LAYER_BYTES + found * item]


def _flops(given: Any, weights: Any, *_: Any, **__: Any) -> int:
    """Of all products of a forward pass; shapes alone."""
    steps = 1
    for size in given[:-1]:
        steps *= size
    return int(2 * steps * sum(one[0] * one[1] for one in weights if len(one) == 2))


def _flops_backward(given: Any, weights: Any, *_: Any, **__: Any) -> int:
    return 2 * _flops(given, weights)


def _flops_of_onednn(given: Any, in_weight: Any, state_weight: Any, *_: Any, **__: Any) -> int:
    return _flops(given, (in_weight, state_weight))


def _flops_of_onednn_backward(given: Any, in_weight: Any, state_weight: Any, *_: Any, **__: Any) -> int:
    return 2 * _flops(given, (in_weight, state_weight))


def register() -> None:
    """Redirects the layers that cuDNN would run; call it once in a process."""
    from torch.utils.flop_counter import register_flop_formula

    for name in _MODES:
        for overload in ("input", "data"):
            run = functools.partial(
                _by_cudnn, name, overload == "data", getattr(getattr(torch.ops.aten, name), overload)
            )
            dispatcher.claim_kernel(f"aten::{name}.{overload}", run, "AutogradPrivateUse1")
    fake_tensors.replace_fake(torch.ops.aten._cudnn_rnn.default, _forward)
    fake_tensors.replace_fake(torch.ops.aten._cudnn_rnn_backward.default, _backward)
    register_flop_formula(torch.ops.aten._cudnn_rnn)(_flops)
    register_flop_formula(torch.ops.aten._cudnn_rnn_backward)(_flops_backward)
    register_flop_formula(torch.ops.aten.mkldnn_rnn_layer)(_flops_of_onednn)
    register_flop_formula(torch.ops.aten.mkldnn_rnn_layer_backward)(_flops_of_onednn_backward)
