"""How kernels of libraries run in a simulation: the same code where it is Python, a stand-in where it is not.

Optimizers and layers are the real ones; only what they call at the end is replaced while a recording is under way:

- bitsandbytes on cpu: its kernels are Python code over torch operators, hidden behind one operator. They are called
  directly, so that their temporaries are recorded. Source: `bitsandbytes/backends/cpu/ops.py`.
- bitsandbytes on CUDA: one kernel a parameter, in place; the operator's fake version says the same, so nothing is replaced.
  Paged state comes from the CUDA driver, not from torch: here it is host memory, and the time of a step is counted as if
  all of it crossed the link. Source: `bitsandbytes/functional.py`, get_paged.
- bitsandbytes' layers with 8-bit weights: `int8_layers.py`.
- torchao's update on CUDA is compiled: it is recorded as one kernel that reads and writes its arguments in place, for a
  slice of a parameter (`techniques/low_bit_optimizer/torchao.py`) or all of it (torchao's own optimizers in a script),
  with the buffers that the compiler (inductor) keeps between its loops. Source: the allocator's events of the compiled
  update on cpu with torch 2.15, in `FORMATS` and `_KEPT_BYTES`; code for CUDA may keep others, so the prediction says
  that it is an approximation.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snugfit.attributes import Change
from snugfit.errors import warn
from snugfit.fake_device.int8_layers import without_outliers
from snugfit.private_torch.collectives import own_part
from snugfit.private_torch.dispatcher import own_operator
from snugfit.private_torch.func_wrappers import parts_inside

_BITSANDBYTES = "bitsandbytes.optim"
_TORCHAO = "snugfit.techniques.low_bit_optimizer.torchao"
_OF_TORCHAO = "torchao.optim.adam"
_INTEGERS = "torchao.kernel.intmm"
_KEPT_BYTES = {"OptimState8bit": 8, "OptimState4bit": 26}
"""Packed state of torchao's own optimizers -> bytes that a compiled update keeps inside for each value."""


def stand_ins(kind: str) -> list[Change]:
    """Returns the replacements for kernels of loaded libraries."""
    changes: list[Change] = []
    if _BITSANDBYTES in sys.modules:
        changes += _bitsandbytes_on_cpu() if kind == "cpu" else [*_bitsandbytes_pages(), *without_outliers()]
    if _TORCHAO in sys.modules and kind != "cpu":
        changes.append((sys.modules[_TORCHAO], "compiled_update", _one_kernel))
    if _OF_TORCHAO in sys.modules and kind != "cpu":
        changes.append((sys.modules[_OF_TORCHAO], "single_param_adam", compiled_parameter_update))
    if _INTEGERS in sys.modules:
        changes.append((sys.modules[_INTEGERS], "out_dtype", _product_of_integers))
    return changes


def _product_of_integers(_: Any, dtype: torch.dtype, left: Tensor, right: Tensor) -> Tensor:
    """Stands for a higher-order operator by which torchao multiplies int8 numbers: as it does without a compiler.

    Source: `torchao/kernel/intmm.py`, safe_int_mm; on cpu it converts both to numbers of as many bytes as int32.
    """
    if left.device.type == "cpu":
        return torch.mm(left, right).view(dtype)
    product: Tensor = torch.ops.aten._int_mm(left, right.contiguous())
    return product


def _bitsandbytes_on_cpu() -> list[Change]:
    from bitsandbytes.backends.cpu import ops

    return [
        (torch.ops.bitsandbytes, "optimizer_update_8bit_blockwise", ops._optimizer_update_8bit_blockwise_cpu),
        (torch.ops.bitsandbytes, "optimizer_update_32bit", ops._optimizer_update_32bit_cpu),
    ]


def _bitsandbytes_pages() -> list[Change]:
    from bitsandbytes import functional

    return [
        (functional, "get_paged", _paged),
        (functional, "fill", lambda tensor, value: tensor.fill_(value)),
        (functional, "prefetch_tensor", lambda tensor, to_cpu=False: None),
    ]


def _paged(*shape: int, dtype: torch.dtype = torch.float32, device: torch.device) -> Tensor:
    warn(
        "paged optimizer state is counted as host memory, and the step's time as if all of it crossed the link every "
        "step; while the card has room it stays there and is faster."
    )
    pages: Any = torch.empty(shape, dtype=dtype, device="cpu")
    pages.is_paged, pages.page_deviceid = True, device.index
    made: Tensor = pages
    return made


def _one_kernel() -> Callable[..., None]:
    """Stands for the compiled update: one kernel."""
    warn(
        "this optimizer's update is compiled on CUDA, and predicted as one kernel for each slice of a parameter: its time "
        "and its temporaries (at most 104 MiB) are an approximation, its state is exact."
    )
    return _update_in_one_kernel


def _update_in_one_kernel(
    weight: Tensor,
    gradient: Tensor,
    first: tuple[Tensor | None, ...],
    second: tuple[Tensor | None, ...],
    *settings: Any,
) -> None:
    _, scale, table = first
    kept_bytes = sys.modules[_TORCHAO].kept_inside(weight.numel(), scale, table)
    kept = torch.empty(kept_bytes, dtype=torch.uint8, device=weight.device)
    _operator()(weight, gradient, [part for part in (*first[:2], *second[:2]) if part is not None])
    del kept


def compiled_parameter_update(
    weight: Tensor, gradient: Tensor, step: Tensor, first: Tensor, second: Tensor, *settings: Any
) -> None:
    """Stands for torchao's own update, which its optimizers compile for each parameter."""
    warn(
        "torchao's optimizer is compiled on CUDA, and predicted as one kernel for each parameter: its time and its "
        "temporaries are an approximation, its state is exact."
    )
    state = [part for one in (first, second, *settings[:1]) if one is not None for part in parts_inside(one)]
    (own,), (received,) = parts_inside(weight), parts_inside(gradient)
    kept_bytes = own.numel() * _KEPT_BYTES.get(type(own_part(first)).__name__, 0)
    kept = torch.empty(kept_bytes, dtype=torch.uint8, device=own.device)
    _operator()(own, received, state)
    del kept


@functools.cache
def _operator() -> Any:
    """An operator that changes weight and state in place and makes nothing."""
    schema = "compiled_adamw(Tensor(a!) weight, Tensor gradient, Tensor(b!)[] state) -> ()"
    return own_operator(schema, lambda weight, gradient, state: None)
