"""Fake tensors that are of a library's class at the same time: packed weights, lazy parameters, images, medical volumes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from snugfit.private_torch import PLAIN_DISPATCH, PLAIN_FUNCTIONS, without_modes
from snugfit.private_torch.fake_tensors import FAKES, FakeTensor, forbid_data_access, on_meta
from snugfit.private_torch.moved_modules import exchange

SEEN_AS: set[type] = set()
"""Classes of fake tensors that are no parameters: a library's methods, which operators of torch would meet inside."""
_make_subclass, _as_subclass = torch.Tensor._make_subclass, torch.Tensor.as_subclass


def of_library(kind: type, data: torch.Tensor, require_grad: bool = False, **more: Any) -> torch.Tensor:
    """Stands for `torch.Tensor._make_subclass`: a fake tensor becomes one of the class (`Params4bit`, a lazy parameter)."""
    both = _fake_and(kind)
    if type(data) not in FAKES or both is None:
        made: torch.Tensor = _make_subclass(kind, data, require_grad, **more)
        return made
    with without_modes(), torch._C.DisableTorchFunctionSubclass():
        meta = on_meta(data)
        device = data.fake_device  # type: ignore[attr-defined]
        made = _make_subclass(both, meta, require_grad, dispatch_device=True, device_for_backend_keys=device)
        # A lazy parameter becomes a plain fake one when it has its shape, which this tells from a tensor.
        _attributes(made).update(_attributes(data), _is_param=issubclass(kind, torch.nn.Parameter))
        forbid_data_access(made)
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
    exchange(tensor, moved)
