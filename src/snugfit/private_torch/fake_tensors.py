"""Fake tensors: made by torch, made quickly from their layout alone, and what their versions of operators return."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses import fake_impls, fake_tensor

from snugfit.private_torch import PLAIN_DISPATCH, PLAIN_FUNCTIONS, without_modes

_META = torch.device("meta")
FakeTensor = fake_tensor.FakeTensor
FakeTensorMode = fake_tensor.FakeTensorMode
FAKES: set[type] = {FakeTensor}
"""Classes of fake tensors: torch's own, and each that is a library's class of parameters at the same time."""
DATA_DEPENDENT = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)
"""Raised by an operator whose result depends on values that fake tensors do not have."""
SEEN_AS: set[type] = set()
"""Those of them that are no parameters: a library's methods, which operators of torch would meet inside."""
UNSUPPORTED = (
    fake_tensor.UnsupportedOperatorException,
    fake_tensor.UnsupportedFakeTensorException,
    NotImplementedError,
)
"""Raised by an operator without a fake version."""
_make_subclass, _as_subclass = torch.Tensor._make_subclass, torch.Tensor.as_subclass
_forbid_data_access = torch._C._set_throw_on_mutable_data_ptr


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
        _forbid_data_access(fake)
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


def of_library(kind: type, data: torch.Tensor, require_grad: bool = False, **more: Any) -> torch.Tensor:
    """Stands for `torch.Tensor._make_subclass`: a fake tensor becomes one of the class (`Params4bit`, a lazy parameter)."""
    both = _fake_and(kind)
    if type(data) not in FAKES or both is None:
        made: torch.Tensor = _make_subclass(kind, data, require_grad, **more)
        return made
    with without_modes(), torch._C.DisableTorchFunctionSubclass():
        meta = _on_meta(data)
        device = data.fake_device  # type: ignore[attr-defined]
        made = _make_subclass(both, meta, require_grad, dispatch_device=True, device_for_backend_keys=device)
        # A lazy parameter becomes a plain fake one when it has its shape, which this tells from a tensor.
        _attributes(made).update(_attributes(data), _is_param=issubclass(kind, torch.nn.Parameter))
        _forbid_data_access(made)
    return made


def as_library(data: torch.Tensor, kind: type) -> torch.Tensor:
    """Stands for `torch.Tensor.as_subclass`: so MONAI's and fastai's tensors and torchvision's images are made."""
    both = _fake_and(kind)
    if type(data) not in FAKES or both is None:
        plain: torch.Tensor = _as_subclass(data, kind)
        return plain
    with torch._C.DisableTorchFunctionSubclass():
        seen: torch.Tensor = torch.ops.aten.alias(data)  # as torch does: gradients go through it
    _OF_FAKES.update(vars(seen))
    seen.__class__ = both
    return seen


@contextmanager
def as_plain(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Context in which tensors are of no library's class, as they are for an operator of torch."""
    seen = [(tensor, type(tensor)) for tensor in tensors if _is_seen_as(type(tensor))]
    for tensor, kind in seen:
        tensor.__class__ = FakeTensor if kind in FAKES else torch.Tensor
    try:
        yield
    finally:
        for tensor, kind in seen:
            tensor.__class__ = kind


def _is_seen_as(kind: type) -> bool:
    """Whether a class is of a library's methods alone: a fake one, or that of an image which a data set has read."""
    if kind in FAKES or kind is torch.Tensor:
        return kind in SEEN_AS
    return getattr(kind, "__torch_dispatch__", None) is PLAIN_DISPATCH and not issubclass(kind, torch.nn.Parameter)


def _fake_and(kind: type) -> type | None:
    """The class of fake tensors that are of a class, too; None where that has operators of its own."""
    if kind in FAKES:
        return kind
    return _both(kind) if getattr(kind, "__torch_dispatch__", None) is PLAIN_DISPATCH else None


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    """A meta tensor on the storage of a fake one, of the same layout."""
    meta = torch.empty(0, dtype=tensor.dtype, device=_META)
    return meta.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


class _StaysOfItsClass:
    """What a library's class finds behind it, as without a fake tensor there: results of functions are of the class, too."""

    __torch_function__ = vars(torch.Tensor)["__torch_function__"]


class _OwnAttributes(dict[str, Any]):
    """The attributes of a tensor as a library sees them; what it writes reaches the tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__({name: value for name, value in _attributes(tensor).items() if not _is_of_fakes(name)})
        self._tensor = tensor

    def update(self, *args: Any, **more: Any) -> None:
        super().update(*args, **more)
        _attributes(self._tensor).update(self)

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


def _with_attributes(tensor: torch.Tensor, given: dict[str, Any]) -> None:
    """Sets the attributes of a tensor but for those that make it a fake one, its device above all.

    MONAI and fastai copy all attributes of one tensor to another, which may be on another device.
    """
    held = _attributes(tensor)
    kept = {name: value for name, value in held.items() if _is_of_fakes(name)}
    new = {name: value for name, value in given.items() if not _is_of_fakes(name)}
    held.clear()
    held.update(new, **kept)


_OF_FAKES: set[str] = set()
"""Names of the attributes that make a tensor a fake one."""


def _is_of_fakes(name: str) -> bool:
    return name in _OF_FAKES or name.startswith("_snugfit")  # what is known of its values is our own


_attributes: Callable[[torch.Tensor], dict[str, Any]] = vars(torch.Tensor)["__dict__"].__get__


@functools.cache
def _both(kind: type) -> type:
    """The class of fake tensors that are of a library's class, too."""
    more: dict[str, Any] = {}
    if not issubclass(kind, torch.nn.Parameter):
        more["__dict__"] = property(_OwnAttributes, _with_attributes)
    if hasattr(kind, "cls_to_become"):  # what a lazy one refuses to tell before it has a shape is asked for here
        more = {
            "cls_to_become": FakeTensor,
            "shape": torch.Tensor.shape,
            "__torch_function__": classmethod(_stays_lazy),
        }
    bases = (FakeTensor,) if kind is torch.Tensor else (kind, _StaysOfItsClass, FakeTensor)
    made = type(kind)(kind.__name__, bases, {"__module__": kind.__module__, **more})
    FAKES.add(made)
    if not issubclass(kind, torch.nn.Parameter):
        SEEN_AS.add(made)
    return made


def _stays_lazy(kind: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Runs a function of torch; a lazy parameter that was moved or cast is one still."""
    result = PLAIN_FUNCTIONS(func, types, args, kwargs or {})
    moved = func in kind._allowed_methods and type(result) is FakeTensor
    return of_library(kind, result, result.requires_grad) if moved else result


def replace_data(tensor: torch.Tensor, data: torch.Tensor) -> None:
    """Does `tensor.data = data` where torch would refuse, as the two are on other devices."""
    kind = type(tensor)
    if kind in FAKES and kind is not FakeTensor:
        moved = of_library(kind, data, tensor.requires_grad)
        moved.__dict__.update({name: value for name, value in vars(tensor).items() if name not in vars(moved)})
    elif isinstance(tensor, torch.nn.Parameter):
        moved = torch.nn.Parameter(data, tensor.requires_grad)
    else:
        moved = data.detach()
    torch.utils.swap_tensors(tensor, moved)  # type: ignore[no-untyped-call]


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
    if any(isinstance(other, torch.Tensor) for other in (*others, *kwargs.values())):
        return None
    with without_modes():
        meta = _on_meta(base)
        try:
            made = operator(meta, *others, **kwargs)
        except (RuntimeError, NotImplementedError, TypeError, IndexError):
            return None  # the fake mode says what is wrong
    several = isinstance(made, list | tuple)
    views = [factory.wrap(view, base.fake_device) for view in (made if several else (made,))]
    return type(made)(views) if several else views[0]


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
