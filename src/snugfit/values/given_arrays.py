"""Arrays, lists and text that code makes of tensors without values."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from snugfit.attributes import Change
from snugfit.errors import CannotSimulateError
from snugfit.private_torch.fake_tensors import FAKES, FakeTensor
from snugfit.values.read_values import ReadValues


def arrays_given(values: ReadValues) -> list[Change]:
    """Returns the replacements that make `.numpy()`, `.tolist()` and `f"{loss:.3f}"` give assumed values."""
    numpy, formatted = torch.Tensor.numpy, torch.Tensor.__format__

    def to_numpy(tensor: torch.Tensor, *, force: bool = False) -> Any:
        if type(tensor) not in FAKES:
            return numpy(tensor, force=force)
        if not force and tensor.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        if not force and tensor.device.type != "cpu":
            raise TypeError(
                "can't convert a tensor of the card to numpy. Use Tensor.cpu() to copy it to the host first."
            )
        array = values.array(tensor, ".numpy()")
        if tensor.device.type == "cpu":  # a real array would lie in the tensor's memory, and so would views of it
            weakref.finalize(array, _let_go, tensor.untyped_storage()).atexit = False
        return array

    def to_list(tensor: torch.Tensor) -> Any:
        return values.array(tensor, ".tolist()").tolist()

    def to_text(tensor: torch.Tensor, how: str) -> str:
        if type(tensor) not in FAKES or tensor.dim() != 0:
            text: str = formatted(tensor, how)  # type: ignore[no-untyped-call]
            return text
        try:
            return format(tensor.item(), how)
        except CannotSimulateError:  # text decides nothing: libraries word the message of a check that holds
            return "?"

    return [
        (torch.Tensor, "numpy", to_numpy),
        (torch.Tensor, "__format__", to_text),
        (FakeTensor, "tolist", to_list),
    ]


def _let_go(storage: torch.UntypedStorage) -> None:
    """Is called with what was kept until then."""
