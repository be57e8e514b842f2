"""What an operator costs, from the shapes of its arguments: floating-point operations, bytes moved, kernels launched.

Floating-point operations follow torch's own formulas (`torch.utils.flop_counter`), except for convolutions, where torch
counts the gradient of grouped weights as if there were no groups; an operator without a formula counts 0 and is judged by
its bytes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from snugfit.operators.moved_again import again_bytes, blocks_of_threads, tensor_bytes
from snugfit.recording.multi_tensor import CHUNK_ELEMENTS, TensorLists
from snugfit.recording.operator_run import Convolution
from snugfit.techniques.batches import tensors_in

_PRODUCTS = {"aten.mm.default": 0, "aten.addmm.default": 1, "aten.bmm.default": 0, "aten.baddbmm.default": 1}
"""Matrix products -> position of the left factor."""


_ROW_SHAPES = {"aten.native_layer_norm.default": (0, 1), "aten.native_layer_norm_backward.default": (1, 2)}
"""Layer norms -> the positions of what is normalised, and of the shape of a row."""


class OperatorCost(NamedTuple):
    """The cost of one run of an operator, named as the fields of `OperatorRun`."""

    flops: int
    """Floating-point operations."""
    read_bytes: int
    """Bytes of all tensor arguments."""
    written_bytes: int
    """Bytes of all results that are not views."""
    dtype: str
    """Dtype it computes in."""
    kernels: int
    """Kernels launched; 0 for a view or an uninitialised tensor."""
    product: tuple[int, int, int, int] | tuple[()]
    """Batch, rows, columns and inner size of a matrix product; empty otherwise."""
    convolution: Convolution | tuple[()] = ()
    """The shape of a convolution; empty otherwise."""
    again_bytes: int = 0
    """Bytes that a card's kernels move more than once, or for nothing."""
    blocks: int = 0
    """Blocks of threads, where they may be fewer than the card's SMs; 0: enough."""
    rows: int = 0
    """Rows that a layer norm works off one by one; each row of a backward pass counts three times."""
    uneven: tuple[int, ...] = ()
    """Lengths of those rows of a matrix product's factors that do not begin at multiples of 16 bytes, in elements."""
    lists: TensorLists | tuple[()] = ()
    """The lists of tensors that a multi-tensor operator works on; empty otherwise."""


def cost_of(
    operator: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, written: Sequence[torch.Tensor]
) -> OperatorCost:
    """Returns what a run of an operator costs.

    `written`: the tensors it wrote: results that are not views, and arguments it changed.
    """
    name = str(operator)
    if name.endswith(".out"):  # as compiled code calls them: the same kernel, which writes where it is told
        name = name.removesuffix("out") + "default"
        kwargs = {argument: value for argument, value in kwargs.items() if argument != "out"}
    inputs = tensors_in((*args, *kwargs.values()))
    makes_nothing = not written or name.startswith(("aten.empty", "aten.new_empty"))
    formula = _formulas().get(operator.overloadpacket)
    lists = _tensor_lists(name, args)
    convolution = _convolution(name, args, result)
    if convolution:
        flops = convolution_flops(convolution)
    else:
        counted = _with_all_heads(args) if "_scaled_dot_product" in name else args
        flops = int(formula(*counted, **kwargs, out_val=result)) if formula is not None and not makes_nothing else 0
    return OperatorCost(
        flops=flops,
        read_bytes=sum(map(tensor_bytes, inputs)),
        written_bytes=sum(map(tensor_bytes, written)),
        dtype=_compute_dtype(written, inputs),
        kernels=0 if makes_nothing else 1 if lists is None else lists.launches,
        product=_product(name, args),
        convolution=convolution,
        again_bytes=again_bytes(operator, name, args, inputs, written, convolution),
        blocks=blocks_of_threads(name, args),
        rows=_rows(name, args),
        uneven=_uneven(name, args),
        lists=() if lists is None else lists,
    )


def _with_all_heads(args: Sequence[Any]) -> list[Any]:
    """Arguments of attention for torch's formulas: shapes, with the heads of keys and values repeated.

    The formulas of torch 2.11 refuse fewer (grouped queries); later ones count them like this.
    """
    heads = max((arg.shape[1] for arg in args if isinstance(arg, torch.Tensor) and arg.dim() == 4), default=1)
    return [
        torch.Size((arg.shape[0], heads, *arg.shape[2:])) if isinstance(arg, torch.Tensor) and arg.dim() == 4 else arg
        for arg in args
    ]


@functools.cache
def _formulas() -> dict[Any, Any]:
    from torch.utils.flop_counter import flop_registry

    return flop_registry


def _compute_dtype(written: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> str:
    for tensors in (inputs, written):
        for tensor in tensors:
            if tensor.is_floating_point():
                return str(tensor.dtype).removeprefix("torch.")
    for tensor in (*written, *inputs):
        return str(tensor.dtype).removeprefix("torch.")
    return "float32"


def _tensor_lists(name: str, args: Sequence[Any]) -> TensorLists | None:
    if not name.startswith(("aten._foreach_", "aten._fused_")):
        return None
    lists = [a for a in args if isinstance(a, list | tuple) and a and isinstance(a[0], torch.Tensor)]
    if not lists:
        return None
    return TensorLists(
        tensors=len(lists[0]),
        chunks=sum(math.ceil(tensor.numel() / CHUNK_ELEMENTS) for tensor in lists[0]),
        lists=len(lists),
    )


def _product(name: str, args: Sequence[Any]) -> tuple[int, int, int, int] | tuple[()]:
    first = _PRODUCTS.get(name)
    if first is None:
        return ()
    left, right = args[first], args[first + 1]
    batch = left.shape[0] if left.dim() == 3 else 1
    return batch, left.shape[-2], right.shape[-1], left.shape[-1]


def _convolution(name: str, args: Sequence[Any], result: Any) -> Convolution | tuple[()]:
    if name == "aten.convolution.default":
        source, weight, stride, transposed, groups = args[0], args[1], args[3], args[6], args[8]
        images, gradients = result, 0
    elif name == "aten.convolution_backward.default":
        images, source, weight, stride, transposed, groups = args[0], args[1], args[2], args[4], args[7], args[9]
        gradients = sum(bit for bit, wanted in zip((1, 2), args[10], strict=False) if wanted)
    else:
        return ()
    if transposed:  # the same products, with input and output changed over
        source, images = images, source
    return Convolution(
        samples=source.shape[0],
        inputs=source.shape[1],
        outputs=images.shape[1],
        groups=groups,
        taps=math.prod(weight.shape[2:]),
        pixels=math.prod(source.shape[2:]),
        positions=math.prod(images.shape[2:]),
        stride=math.prod(stride),
        gradients=gradients,
        channels_last=_likes_channels_last(source) or _likes_channels_last(weight),
    )


def convolution_flops(shape: Convolution) -> int:
    """Returns the floating-point operations of a convolution, or of its gradients."""
    one = 2 * shape.samples * shape.positions * shape.outputs * (shape.inputs // shape.groups) * shape.taps
    return one * max(1, shape.gradients.bit_count())


def _rows(name: str, args: Sequence[Any]) -> int:
    if name not in _ROW_SHAPES:
        return 0
    source, row = (args[position] for position in _ROW_SHAPES[name])
    return source.numel() // max(1, math.prod(row))  # type: ignore[no-any-return]


def _uneven(name: str, args: Sequence[Any]) -> tuple[int, ...]:
    first = _PRODUCTS.get(name)
    if first is None:
        return ()
    found = []
    for factor in args[first : first + 2]:
        strides = [stride for stride in factor.stride() if stride > 1 and stride * factor.dtype.itemsize % 16]
        found += [min(strides)] if strides else []
    return tuple(dict.fromkeys(found))


def _likes_channels_last(tensor: torch.Tensor) -> bool:
    """What torch's `suggest_memory_format` says: channels are adjacent, if only in a part of a larger tensor."""
    if tensor.dim() != 4:
        return False
    if tensor.is_contiguous():
        return False
    channels, *places = tensor.stride()[1:]
    return channels == 1 and all(stride >= tensor.shape[1] for stride in places)
