"""Fake tensors: made by torch, made quickly from their layout alone, and what their versions of operators return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._subclasses import fake_impls, fake_tensor

from snugfit.private_torch import without_modes

_META = torch.device("meta")
FakeTensor = fake_tensor.FakeTensor
FakeTensorMode = fake_tensor.FakeTensorMode
FAKES: set[type] = {FakeTensor}
"""Classes of fake tensors: torch's own, and each that is a library's class of parameters at the same time."""
DATA_DEPENDENT = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)
"""Raised by an operator whose result depends on values that fake tensors do not have."""
UNSUPPORTED = (
    fake_tensor.UnsupportedOperatorException,
    fake_tensor.UnsupportedFakeTensorException,
    NotImplementedError,
)
"""Raised by an operator without a fake version."""
_make_subclass = torch.Tensor._make_subclass
forbid_data_access = torch._C._set_throw_on_mutable_data_ptr


def new_fake_mode() -> FakeTensorMode:
    """Returns a fake mode that takes real tensors as arguments, too."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def in_fake_mode() -> bool:
    """Returns whether a fake mode is entered; it lies under all modes of ours, whichever was entered first."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def forget_conversions(mode: FakeTensorMode) -> None:
    """Drops a fake mode's weak references to tensors it has seen, which keep modules from swapping them."""
    converter = mode.fake_tensor_converter.meta_converter
    converter.tensor_memo.clear()
    converter.storage_memo.clear()


class FakeFactory:
    """Makes fake tensors from their layout alone, several times faster than their constructor.

    All fake tensors of one device start with the same attributes; they are copied from one made the ordinary way.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        """Starts without templates; tensors belong to `mode`."""
        self.mode = mode
        self._attributes: dict[torch.device, dict[str, Any]] = {}

    def wrap(self, meta: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Returns a fake tensor that claims to be on a device and shares the storage of a meta tensor."""
        attributes = self._attributes.get(device)
        if attributes is None:
            attributes = dict(FakeTensor(self.mode, meta, device).__dict__)
            self._attributes[device] = attributes
        fake: torch.Tensor = _make_subclass(
            FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device
        )
        fake.__dict__.update(attributes)
        forbid_data_access(fake)
        return fake

    def empty(
        self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Returns a new fake tensor with a storage of its own; strides in elements."""
        return self.wrap(torch.empty_strided(shape, stride, dtype=dtype, device=_META), device)

    def view(
        self, base: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Returns a fake tensor on the storage of another; strides and offset in elements."""
        # In inference mode, too, a view of an ordinary tensor is one: it shares the count of writes.
        with torch.inference_mode(mode=False) if _made_for_inference(base) else nullcontext():
            meta = torch.empty(0, dtype=dtype, device=_META)
            meta.set_(base.untyped_storage(), offset, shape, stride)
            return self.wrap(meta, base.fake_device)  # type: ignore[attr-defined]


def on_meta(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a meta tensor on the storage of a fake one, of the same layout."""
    meta = torch.empty(0, dtype=tensor.dtype, device=_META)
    return meta.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _made_for_inference(base: torch.Tensor) -> bool:
    """Whether a new tensor would be an inference tensor, while this one is not."""
    return torch.is_inference_mode_enabled() and not base.is_inference()


def viewed(factory: FakeFactory, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Returns the views of a fake tensor that an operator makes, by its meta kernel; None where it makes none.

    Where only one tensor takes part, the fake mode does the same by a way that takes twenty times as long.
    """
    if not operator.is_view or operator.namespace != "aten" or not args or type(args[0]) not in FAKES:
        return None
    base, *others = args
    if base.constant is not None or base.layout is not torch.strided or torch.is_inference_mode_enabled():
        return None
    if base.is_conj() or base.is_neg():  # views that are to be conjugated when they are read: not known on meta
        return None
    if any(isinstance(other, torch.Tensor) for other in (*others, *kwargs.values())):
        return None
    with without_modes():
        meta = on_meta(base)
        try:
            made = operator(meta, *others, **kwargs)
        except (RuntimeError, NotImplementedError, TypeError, IndexError):
            return None  # the fake mode says what is wrong
    several = isinstance(made, list | tuple)
    views = [factory.wrap(view, base.fake_device) for view in (made if several else (made,))]
    return type(made)(views) if several else views[0]


def same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors are the same numbers in the same storage."""
    layouts = [(t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride(), t.dtype) for t in (one, other)]
    return layouts[0] == layouts[1]


def amend_fake(operator: Any, amend: Callable[[Any, Sequence[Any]], Any]) -> None:
    """Changes what an operator's fake version returns: `amend` gets the result and the positional arguments."""
    original = fake_impls.op_implementations_dict[operator]

    def amended(mode: FakeTensorMode, func: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(mode, func, *args, **kwargs)
        with mode:
            return amend(result, args)

    fake_impls.op_implementations_dict[operator] = amended


def replace_fake(operator: Any, make: Callable[..., Any]) -> None:
    """Replaces an operator's fake version; `make` gets the arguments as fake tensors."""

    def made(mode: FakeTensorMode, func: Any, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return make(*args, **kwargs)

    fake_impls.op_implementations_dict.pop(operator, None)  # a later torch may have one of its own
    fake_impls.register_op_impl(operator)(made)


def let_optimizers_take_fakes() -> None:
    """Makes optimizers and clipping choose multi-tensor kernels for fake tensors, as for real ones."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    for types in (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types):
        if FakeTensor not in types:
            types.append(FakeTensor)
