"""Weights written as a safetensors file: complete or not at all, and one tensor after the other.

The library's own writer wants all tensors at once and holds their bytes a second time. The format is a table of contents
and then the tensors' bytes, so whoever knows names, shapes and dtypes beforehand can write each tensor as it comes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from snugfit.atomic_file import replaced_file
from snugfit.errors import InputError
from snugfit.workloads.stored_weights import DTYPES

Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Name of a tensor -> its dtype and shape."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def save_model(path: Path, state: Mapping[str, Tensor]) -> None:
    """Writes a state dict as safetensors, complete or not at all.

    Tied tensors are stored under each of their names, so that a plain model loads the file with `strict=True`.
    """
    save_tensors(path, layout_of(state), state.items())


def layout_of(state: Mapping[str, Tensor]) -> Layout:
    """Returns the table of contents for tensors, or for things with a dtype and a shape."""
    odd = [name for name, value in state.items() if not isinstance(value, Tensor) or value.dtype not in _NAMES]
    if odd:
        value = state[odd[0]]
        what = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise InputError(
            f"{odd[0]!r} of the model's state_dict is {what}, which a safetensors file cannot hold. Save the state_dict "
            "with torch.save, or take it out of the model first."
        )
    return {name: (value.dtype, tuple(value.shape)) for name, value in state.items()}


def save_tensors(path: Path, layout: Layout, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Writes a safetensors file from tensors that come one by one, of which it holds one at a time.

    `tensors`: names and tensors on any device, in any order, each once.
    """
    places, at = {}, 0
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    # Wide types first, as the library has it: then every tensor lies at a multiple of its element's size.
    for name, (dtype, shape) in sorted(layout.items(), key=lambda one: (-one[1][0].itemsize, one[0])):
        places[name], end = at, at + dtype.itemsize * torch.Size(shape).numel()
        table[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": (at, end)}
        at = end
    head = json.dumps(table, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    begin = 8 + len(head)
    with replaced_file(path) as temporary, temporary.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(begin + at)
        for name, tensor in tensors:
            assert (tensor.dtype, tuple(tensor.shape)) == layout[name], name
            file.seek(begin + places.pop(name))
            file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            del tensor
        assert not places, f"{sorted(places)[:4]} did not come"
