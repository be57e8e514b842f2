"""Files of tensors in a script that is only looked at: what it reads is there as in a real run, what it saves is not.

A file of before has its values, on the host. What goes to the card (`map_location`, or the card that it was saved from)
is allocated there, storage by storage, and takes its memory until the script lets go of it. What the script saves by
`torch.save` has no values: such a file holds a number, by which `torch.load` gives back what was saved. One of
safetensors is as long as it would be, and all zeros.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import safetensors
import safetensors.torch
import torch

from snugfit.attributes import Change, replaced
from snugfit.private_torch.real_tensors import read_for_real, whole_storage
from snugfit.simulator.copied_tensors import of_kind
from snugfit.simulator.harmless import read_from

_SAVED = b"saved in an estimate as "
"""What stands in a file in place of tensors, before a number."""
_safe_open = safetensors.safe_open
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def stored_tensors() -> list[Change]:
    """Returns the replacements of what writes and reads tensors."""
    load, kept, numbers = torch.load, dict[int, Any](), dict[Any, int]()

    def save(obj: Any, f: Any, *_: Any, **__: Any) -> None:
        is_path = isinstance(f, str | os.PathLike)
        number = numbers.setdefault(os.path.abspath(f) if is_path else id(f), len(numbers))  # noqa: PTH100 links stay
        kept[number] = obj
        # A file that may be renamed, measured and loaded.
        with open(f, "wb") if is_path else nullcontext(f) as file:  # noqa: PTH123 this one is told where to write
            file.write(b"%s%d" % (_SAVED, number))

    def loaded(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        is_path = isinstance(f, str | os.PathLike)
        with open(f, "rb") if is_path else nullcontext(f) as file:  # noqa: PTH123 as above
            at = file.tell()
            mark = file.read(len(_SAVED) + 9)
            file.seek(at)
        if mark.startswith(_SAVED):
            return kept[int(mark[len(_SAVED) :])]
        return _read(lambda where: load(f, where, *args, **kwargs), map_location)

    owners = safetensors, safetensors.torch, sys.modules.get("transformers.modeling_utils")
    changes: list[Change] = [(owner, "safe_open", _Opened) for owner in owners if hasattr(owner, "safe_open")]
    changes += [(safetensors.torch, "save_file", save_file), (torch, "save", save), (torch, "load", loaded)]
    return [*changes, *read_for_real()]


def save_file(
    tensors: Mapping[str, torch.Tensor], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes the head of a file of safetensors; what follows is a hole, which takes no room on the disk."""
    head: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        head[name] = {"dtype": _kind(tensor.dtype), "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(head).encode()
    with open(filename, "wb") as file:  # noqa: PTH123 this one is told where to write
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def _kind(dtype: torch.dtype) -> str:
    """A dtype's name in such a file."""
    name = str(dtype).removeprefix("torch.")
    if name.startswith("float8_"):
        return f"F8_{name.removeprefix('float8_').upper().removesuffix('FN')}"
    return {"bool": "BOOL", "bfloat16": "BF16"}.get(name, f"{name[0].upper()}{8 * dtype.itemsize}")


class _Opened:
    """A file of safetensors, which is read on the host: its reader knows no device but those it was built for."""

    def __init__(self, filename: Any, framework: str, device: Any = "cpu", **more: Any) -> None:
        self._file: Any = _safe_open(read_from(filename), framework=framework, **more)
        self._device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def get_tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor.to(self._device)

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self._file.keys()}  # noqa: SIM118 it is no dict

    def get_slice(self, name: str) -> Any:
        return _Slice(self._file.get_slice(name), self._device)


class _Slice:
    """One tensor of such a file, read in parts."""

    def __init__(self, part: Any, device: torch.device) -> None:
        self._part, self._device = part, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __getitem__(self, where: Any) -> torch.Tensor:
        tensor: torch.Tensor = self._part[where]
        return tensor.to(self._device)


class _Storage:
    """A storage as a `map_location` of a person's own moves it: it has no numbers."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def cuda(self, device: Any = None, **_: Any) -> _Storage:
        return _Storage("cuda" if device is None else torch.device("cuda", device) if type(device) is int else device)

    def cpu(self) -> _Storage:
        return _Storage("cpu")


def _read(load: Callable[[Any], Any], map_location: Any) -> Any:
    """Loads on the host, and puts each storage where `map_location` says, in the simulation."""
    saved_from: dict[int, str] = {}

    def noted(storage: Any, location: str) -> Any:
        saved_from[storage._cdata] = location
        return storage

    read = load(noted)
    devices = {number: torch.device(_target(location, map_location)) for number, location in saved_from.items()}
    if all(device.type == "cpu" for device in devices.values()):
        return read
    if not torch.cuda.is_available() and any(device.type == "cuda" for device in devices.values()):
        raise RuntimeError(
            "the file's tensors are for a CUDA device, and there is none: map_location='cpu' reads them."
        )
    moved: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    first = next(device for device in devices.values() if device.type != "cpu")

    def placed(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        if id(tensor) not in memo:
            strided = type(tensor) in _PLAIN and tensor.layout is torch.strided
            memo[id(tensor)] = _placed(tensor, devices, moved) if strided else tensor.to(first)
        return memo[id(tensor)]

    # Whatever a file holds can be copied deeply: it was pickled.
    with replaced([(owner, "__deepcopy__", placed) for owner in _PLAIN]), torch.no_grad():
        return copy.deepcopy(read)


def _target(location: str, map_location: Any) -> Any:
    """The device for what was saved from `location`, as torch reads `map_location`."""
    if map_location is None:
        return location
    if isinstance(map_location, dict):
        return map_location.get(location, location)
    if isinstance(map_location, str | torch.device):
        return map_location
    storage = map_location(_Storage("cpu"), location)
    return location if storage is None else storage.device


def _placed(
    tensor: torch.Tensor, devices: dict[int, torch.device], moved: dict[tuple[int, torch.dtype], torch.Tensor]
) -> torch.Tensor:
    storage = tensor.untyped_storage()._cdata
    device = devices.get(storage)
    if device is None or device.type == "cpu":
        return tensor
    key = storage, tensor.dtype
    if key not in moved:
        moved[key] = whole_storage(tensor).to(device)
    row = moved[key]
    if tensor.is_contiguous() and tensor.numel() == row.numel():
        placed = row.view(tensor.shape)
    else:
        placed = row.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return of_kind(placed, isinstance(tensor, torch.nn.Parameter), tensor.requires_grad)
