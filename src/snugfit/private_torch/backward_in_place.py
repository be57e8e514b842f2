"""What backward does in place, but not where it sees fake tensors or a dispatch mode: sums of gradients, and formulas.

For tensor subclasses, and under any dispatch mode, formulas of gradients make a new tensor where a real run writes into the
one that they have just made: gradients of indexing, of values that were selected, and of the loss of logits would count
once too often.

Source: `isTensorSubclassLike` and its callers, in aten/src/ATen/TensorSubclassLikeUtils.h, native/ReduceOps.cpp
(value_selecting_reduction_backward, cummaxmin_backward), native/TensorAdvancedIndexing.cpp (gather_backward,
index_select_backward) and torch/csrc/autograd/FunctionsManual.cpp (index_backward,
binary_cross_entropy_with_logits_backward) of torch 2.11 to 2.15. Formulas that look at values besides
are in `fake_device/value_gradients.py`; those of decompositions are left as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from snugfit.errors import CannotSimulateError
from snugfit.private_torch import DirectMode, current_node
from snugfit.private_torch.fake_tensors import FakeTensor

_aten = torch.ops.aten
_BY_OPERATOR = {
    _aten.index_put.default: (_aten.index_put_.default, ("IndexBackward",)),
    _aten.scatter.src: (_aten.scatter_.src, ("",)),
    _aten.scatter_add.default: (_aten.scatter_add_.default, ("GatherBackward", "Cummax", "Cummin")),
    _aten.index_add.default: (_aten.index_add_.default, ("IndexSelectBackward",)),
    _aten.put.default: (_aten.put_.default, ("TakeBackward",)),
    _aten.sub.Tensor: (_aten.sub_.Tensor, ("BinaryCrossEntropyWithLogitsBackward",)),
    _aten.mul.Tensor: (_aten.mul_.Tensor, ("BinaryCrossEntropyWithLogitsBackward",)),
}
"""Operator -> the one that writes in place, and the nodes in which a real run takes that."""
_HELD = {_aten.mul.Tensor: 5}
"""Operator -> the most references to a tensor that a formula has made, as a dispatch mode sees them; one that was saved for
backward, such as the loss's weights of classes, has more."""

_BETWEEN = frozenset(
    {__file__, *(str(Path(torch.__file__).parent / one) for one in ("_compile.py", "_dynamo/eval_frame.py"))}
)
"""Files of functions between backward and a mode: these here, and those that keep compilers out of modes."""
_ALONE = (4, 2)
"""Counts of references to a tensor, and to its storage, that nobody but the autograd engine holds, as a dispatch mode sees
them."""


def as_unwatched(func: Any, args: Sequence[Any]) -> Any:
    """Returns the operator that backward takes where no mode looks on; asked by a dispatch mode, and mostly the same."""
    if func is _aten.add.Tensor and summed_in_place(args):
        return _aten.add_.Tensor
    return in_place_of(func, args)


def in_place_of(func: Any, args: Sequence[Any]) -> Any:
    """Returns the operator that a real run uses in a formula of a gradient; mostly the same."""
    found = _BY_OPERATOR.get(func)
    if found is None:  # nearly all operators, so nothing else is asked before
        return func
    node = current_node()
    if node is None or not node.name().startswith(found[1]):
        return func
    if not _asked_by_the_engine():
        return func
    target = args[0]
    # Somebody else holds the tensor or its storage: a real run would not write into it either.
    if target._use_count() > _HELD.get(func, 8) or torch._C._storage_Use_Count(target.untyped_storage()._cdata) != 2:
        return func
    broadcast = func in (_aten.sub.Tensor, _aten.mul.Tensor) and isinstance(args[1], torch.Tensor)
    if broadcast and torch.broadcast_shapes(target.shape, args[1].shape) != target.shape:  # type: ignore[no-untyped-call]
        return func
    return found[0]


def summed_in_place(args: Sequence[Any]) -> bool:
    """Returns whether autograd adds up gradients here (args of `aten.add.Tensor`), which a real run does in place.

    Gradients that reach a node from several sides are added into the first of them, where nobody else holds that. For
    tensor subclasses, as fake tensors are, the engine makes a new tensor instead.

    Source: `torch/csrc/autograd/input_buffer.cpp`, can_accumulate_inplace and accumulate.
    """
    if torch._C._current_graph_task_id() == -1 or len(args) != 2:
        return False
    if not _asked_by_the_engine():
        return False
    total, share = args
    if type(total) is not type(share) or type(total) not in (FakeTensor, torch.Tensor):
        return False
    if total.layout is not torch.strided or share.layout is not torch.strided:
        return False
    if total.shape != share.shape or total.dtype != share.dtype:
        return False
    counts = total._use_count(), torch._C._storage_Use_Count(total.untyped_storage()._cdata)
    return counts == _ALONE and _is_dense(total)


def _asked_by_the_engine() -> bool:
    """Whether the mode that asks was called by backward itself, and not by a Python kernel or hook inside of it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_name == "__torch_dispatch__" or frame.f_code.co_filename in _BETWEEN):
        frame = frame.f_back  # of modes, and of what they derive from
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"


def check_summed_in_place() -> None:
    """Raises if `summed_in_place` fails with this torch: it goes by reference counts; predictions would be too high."""
    found: list[bool] = []

    class Watch(DirectMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.add.Tensor:
                found.append(summed_in_place(args))
            return func(*args, **(kwargs or {}))

    with torch.enable_grad(), Watch():  # type: ignore[no-untyped-call]
        value = torch.ones(2, requires_grad=True) * 1
        torch.stack([value * 2, value * 3]).sum().backward()  # type: ignore[no-untyped-call]
    if found != [True]:
        raise CannotSimulateError(
            f"torch {torch.__version__} sums gradients in a way that this version of snugfit does not know, so predictions "
            "would be wrong. Use a torch that README.md names, or a newer snugfit."
        )


def _is_dense(tensor: torch.Tensor) -> bool:
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return reach == tensor.numel()
