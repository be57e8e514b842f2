"""`torch.cuda.FloatTensor` and its like, by which older scripts make tensors of the card and convert to them."""

from __future__ import annotations

from typing import Any

import torch

from snugfit.attributes import Change
from snugfit.fake_device.personality import DEVICE_TYPE

_DTYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Byte": torch.uint8, "Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64,
    "Bool": torch.bool,
}  # fmt: skip


class _OldType(type):
    """A class of tensors that is made by its sizes, or by what it holds."""

    dtype: torch.dtype

    def __instancecheck__(cls, tensor: Any) -> bool:
        of_card = isinstance(tensor, torch.Tensor) and tensor.device.type == DEVICE_TYPE
        return of_card and tensor.dtype == cls.dtype

    def __call__(cls, *given: Any) -> Any:
        device = torch.device(DEVICE_TYPE, 0)
        sizes = given[0] if given and isinstance(given[0], torch.Size) else given
        if all(isinstance(size, int) for size in sizes):
            return torch.empty(tuple(sizes) or (0,), dtype=cls.dtype, device=device)
        data = given[0] if isinstance(given[0], torch.Tensor) else torch.tensor(given[0], dtype=cls.dtype)
        return data.to(device, cls.dtype)


_TYPES = {f"{name}Tensor": _OldType(f"{name}Tensor", (), {"dtype": dtype}) for name, dtype in _DTYPES.items()}


def old_types() -> list[Change]:
    """Returns the replacements of `torch.cuda.FloatTensor` and its like, which may be the default, too."""
    original, make = torch.set_default_tensor_type, torch.Tensor.__new__

    def set_default_tensor_type(kind: Any) -> None:
        of_card = _of_card(kind)
        torch.set_default_device(None if of_card is None else torch.device(DEVICE_TYPE, 0))
        # A default device is not for `torch.Tensor(...)`, the default type is.
        setattr(torch.Tensor, "__new__", make if of_card is None else made)  # noqa: B010 mypy takes it for a method
        if of_card is None:
            original(kind)
        else:
            torch.set_default_dtype(of_card.dtype)

    def made(cls: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = make(cls, *args, **kwargs)
        return tensor.to(torch.device(DEVICE_TYPE, 0)) if cls is torch.Tensor else tensor

    types: list[Change] = [(torch.cuda, name, kind) for name, kind in _TYPES.items()]
    return [*types, (torch.Tensor, "__new__", make), (torch, "set_default_tensor_type", set_default_tensor_type)]


def converted(tensor: torch.Tensor, kind: Any) -> torch.Tensor | None:
    """Returns what `tensor.type(kind)` gives where `kind` is one of the card's; else None."""
    of_card = _of_card(kind)
    return None if of_card is None else tensor.to(torch.device(DEVICE_TYPE, 0), of_card.dtype)


def _of_card(kind: Any) -> _OldType | None:
    if isinstance(kind, str) and kind.startswith("torch.cuda."):
        kind = _TYPES.get(kind.removeprefix("torch.cuda."))
    return kind if isinstance(kind, _OldType) else None
