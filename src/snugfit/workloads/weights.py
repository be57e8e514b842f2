"""Pretrained weights from a safetensors file, heads for another number of classes, and freezing by name pattern.

Only safetensors files are read: pickled checkpoints can run code when they are opened. A file is matched against the
model by names and shapes before a single value is copied, so a model is never half-loaded.
"""

from __future__ import annotations

import copy
import fnmatch
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snugfit.errors import InputError, listed, note
from snugfit.techniques.adapter.layers import adapter_record
from snugfit.techniques.init.late import await_values
from snugfit.workloads.hf_conversion import Source

LAYERS_WITH_CLASSES = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""Names of dtypes in safetensors files (the format's README)."""


_BEGINNING = 4096


class StoredWeights:
    """A safetensors file: names and shapes at hand, tensors read one at a time.

    The library checks the file and its table of contents. The bytes are mapped here, because the library's torch reader
    holds one storage of the size of the whole file for as long as it is open.
    """

    def __init__(self, path: str | Path) -> None:
        """Opens a `.safetensors` file and reads its table of contents; `InputError` where it is damaged."""
        from safetensors import SafetensorError, safe_open

        self.path = Path(path).expanduser()
        if self.path.suffix != ".safetensors":
            raise InputError(
                f"weights file {str(path)!r} is no .safetensors file. Pickled checkpoints (.pt, .pth, .bin) can run "
                "code when they are opened; convert them with safetensors.torch.save_file."
            )
        if not self.path.is_file():
            raise InputError(f"weights file {str(path)!r} does not exist. Give an existing .safetensors file.")
        try:
            with safe_open(str(self.path), framework="np"):
                pass  # checks that offsets, shapes and the file's length agree
            with self.path.open("rb") as file:
                header_bytes = int.from_bytes(file.read(8), "little")
                self._table: dict[str, Any] = json.loads(file.read(header_bytes))
            # Copy-on-write, because torch wants memory that may be written; nothing writes to it.
            self._bytes = np.memmap(self.path, dtype=np.uint8, mode="c", offset=0)[8 + header_bytes :]
        except (SafetensorError, OSError, ValueError) as error:
            raise InputError(
                f"weights file {str(path)!r} cannot be read: {error}. It is damaged, cut short, or no safetensors file."
            ) from error
        self._table.pop("__metadata__", None)
        odd = {entry["dtype"] for entry in self._table.values()} - set(DTYPES)
        if odd:
            raise InputError(f"weights file {str(path)!r} has tensors of dtype {', '.join(sorted(odd))}; convert them.")
        self.shapes: dict[str, tuple[int, ...]] = {name: tuple(entry["shape"]) for name, entry in self._table.items()}
        self.dtypes: dict[str, torch.dtype] = {name: DTYPES[entry["dtype"]] for name, entry in self._table.items()}
        self._begin = 8 + header_bytes

    def read(self, name: str) -> torch.Tensor:
        """Returns a tensor by name, as a view of the mapped file; do not write to it."""
        entry = self._table[name]
        begin, end = entry["data_offsets"]
        if begin == end:
            return torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]])
        return torch.from_numpy(self._bytes[begin:end]).view(DTYPES[entry["dtype"]]).view(entry["shape"])

    def copied(self, name: str) -> torch.Tensor:
        """Returns a tensor by name in memory of its own; no part of the file stays mapped for it."""
        tensor = torch.empty(self.shapes[name], dtype=self.dtypes[name])
        if tensor.numel():
            with self.path.open("rb", buffering=0) as file:
                file.seek(self._begin + self._table[name]["data_offsets"][0])
                memory = tensor.reshape(-1).view(torch.uint8).numpy().data
                while memory:
                    count = file.readinto(memory)
                    if not count:
                        raise InputError(
                            f"weights file {str(self.path)!r} ends too early. It was changed while it was read."
                        )
                    memory = memory[count:]
        return tensor

    def beginning(self, name: str) -> bytes:
        """Returns the first bytes of a tensor, which tell weights of equal shapes apart."""
        begin, end = self._table[name]["data_offsets"]
        return self._bytes[begin : min(end, begin + _BEGINNING)].tobytes()


class StoredShards:
    """Several safetensors files that hold one model, read as one."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        """Opens files of one directory and reads their tables of contents; `InputError` where one is damaged."""
        self.path = Path(paths[0]).parent
        self._files = {name: file for file in map(StoredWeights, paths) for name in file.shapes}
        self.shapes = {name: file.shapes[name] for name, file in self._files.items()}
        self.dtypes = {name: file.dtypes[name] for name, file in self._files.items()}

    def copied(self, name: str) -> torch.Tensor:
        """Returns one tensor in memory of its own, as `StoredWeights.copied` does."""
        return self._files[name].copied(name)

    def beginning(self, name: str) -> bytes:
        """Returns the first bytes of one tensor, as `StoredWeights.beginning` does."""
        return self._files[name].beginning(name)


def fingerprint(stored: StoredWeights | StoredShards) -> str:
    """Returns names, shapes and beginnings of stored weights as one digest, however they are cut into files."""
    digest = hashlib.sha256()
    for name in sorted(stored.shapes):
        digest.update(f"{name} {stored.dtypes[name]} {stored.shapes[name]}".encode())
        digest.update(stored.beginning(name))
    return digest.hexdigest()


def await_weights(
    model: torch.nn.Module, stored: StoredWeights | StoredShards, *, without_values: bool = False
) -> bool:
    """Marks parameters on meta as awaited from a file, and reads buffers.

    `without_values`: whether memory of their size and dtype stands for them, and buffers are left alone.
    Returns whether the file has exactly the tensors of the model; if not, nothing is marked.
    """
    state = model.state_dict(keep_vars=True)
    known = {id(value): name for name, value in state.items() if name in stored.shapes}
    found = {name: name if name in stored.shapes else known.get(id(value), "") for name, value in state.items()}
    if set(stored.shapes) - set(state) or any(
        stored.shapes.get(found[name]) != tuple(value.shape) for name, value in state.items()
    ):
        return False
    for name, value in state.items():
        source = found[name]
        if isinstance(value, torch.nn.Parameter):
            shape, dtype = stored.shapes[source], stored.dtypes[source]
            read = functools.partial(stored.copied, source)
            if without_values:
                read = functools.partial(torch.empty, shape, dtype=dtype, device="cpu")
            await_values(value, read, stored=True)
        elif not without_values:
            value.copy_(stored.copied(source))
    return True


def await_converted(
    model: torch.nn.Module, stored: StoredShards, sources: Mapping[str, Source], *, without_values: bool = False
) -> bool:
    """As `await_weights`, for a file whose tensors have other names or cuts than the model's.

    `sources`: what each tensor of the model's state is made of; of tied ones one may be missing.
    Returns whether the file has every tensor of the model, in its size; if not, nothing is marked.
    """
    state = model.state_dict(keep_vars=True)
    known = {id(value): sources[name] for name, value in state.items() if name in sources}
    sizes = {name: math.prod(shape) for name, shape in stored.shapes.items()}
    if any(
        id(value) not in known or sum(sizes[name] for name in known[id(value)].names) != value.numel()
        for value in state.values()
    ):
        return False

    def empty(name: str) -> torch.Tensor:
        return torch.empty(stored.shapes[name], dtype=stored.dtypes[name], device="cpu")

    for value in state.values():
        source = known[id(value)]
        if isinstance(value, torch.nn.Parameter):
            await_values(value, functools.partial(source.read, empty if without_values else stored.copied), stored=True)
        elif not without_values:
            value.copy_(source.read(stored.copied))
    return True


def match_weights(model: torch.nn.Module, stored: StoredWeights) -> dict[str, str | None]:
    """Says where each tensor of a model comes from; `InputError` lists what does not fit.

    Returns state-dict name of the model -> name in the file (another one for a tied tensor that is stored once), or
    None for a head that is kept fresh because the file has another number of classes.
    """
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)}
    stored_name_of = {id(value): name for name, value in state.items() if name in stored.shapes}
    found = {name: name if name in stored.shapes else stored_name_of.get(id(value)) for name, value in state.items()}
    missing = [name for name, source in found.items() if source is None]
    unexpected = [name for name in stored.shapes if name not in state]
    resized = [name for name, source in found.items() if source and stored.shapes[source] != tuple(state[name].shape)]
    heads = _heads_of_other_classes(model, resized, stored.shapes)
    if not missing and not unexpected and (heads or not resized):
        if heads:
            note(_head_note(heads, str(stored.path)))
        return {name: None if name in resized else source for name, source in found.items()}
    parts = []
    if missing:
        parts.append(f"{len(missing)} missing in the file ({listed(missing)})")
    if unexpected:
        parts.append(f"{len(unexpected)} unknown to the model ({listed(unexpected)})")
    if resized:
        shapes = [f"{name}: file {list(stored.shapes[name])}, model {list(state[name].shape)}" for name in resized]
        parts.append(f"{len(resized)} of another shape ({listed(shapes)})")
    raise InputError(
        f"weights file {str(stored.path)!r} does not fit the model: {'; '.join(parts)}. "
        "Give the file of this architecture, or the model arguments it was trained with."
    )


@torch.no_grad()
def load_weights(model: torch.nn.Module, stored: StoredWeights) -> list[str]:
    """Copies a file into a model one tensor at a time, rounded to its dtype; returns names it had nothing for."""
    found = match_weights(model, stored)
    for name, value in model.state_dict(keep_vars=True).items():
        source = found.get(name)
        if source is not None:
            value.copy_(stored.read(source))
    return [name for name, source in found.items() if source is None]


@torch.no_grad()
def map_weights(model: torch.nn.Module, stored: StoredWeights, dtype: torch.dtype | None) -> list[str]:
    """Gives a model without memory the tensors of a file, mapped where the dtype is right; returns names not found.

    `dtype`: dtype of floating-point tensors; None: the model's own.
    """
    found = match_weights(model, stored)
    mapped: dict[torch.Tensor, torch.Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        source = found.get(name)
        if source is None:
            continue
        if not value.is_meta:
            value.copy_(stored.read(source))
            continue
        final = dtype if dtype is not None and value.is_floating_point() else value.dtype
        if value not in mapped:
            read = stored.read(source).to(final)
            own = isinstance(value, torch.nn.Parameter)
            mapped[value] = torch.nn.Parameter(read, value.requires_grad) if own else read
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            table.update({key: mapped[tensor] for key, tensor in table.items() if tensor in mapped})  # type: ignore[misc]
    return [name for name, source in found.items() if source is None]


def _heads_of_other_classes(
    model: torch.nn.Module, resized: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, int]]:
    """Head name -> (classes in the file, in the model), if that explains all shapes that differ.

    Heads are Linear or Conv layers whose outputs are as many as the model's classes and, in the file, as many as the
    file's; the model's last such layer must be one of them. Several are auxiliary heads.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LAYERS_WITH_CLASSES)}
    heads: dict[str, tuple[int, int]] = {}
    for full_name in resized:
        name, _, kind = full_name.rpartition(".")
        if name not in layers or full_name not in shapes:
            return {}
        own, other = tuple(getattr(layers[name], kind).shape), shapes[full_name]
        if len(own) != len(other) or own[1:] != other[1:]:
            return {}
        heads[name] = (other[0], own[0])
    same_classes = len(set(heads.values())) == 1
    return heads if same_classes and list(layers)[-1] in heads else {}


def replace_heads(model: torch.nn.Module, old_classes: int, classes: int, *, origin: str) -> None:
    """Puts fresh layers in place of heads with `old_classes` outputs; `origin` names the weights in messages."""
    heads = {}
    # The model's own head is its last layer; an auxiliary head is the last layer of another child of the model.
    for part_name, part in model.named_children():
        layers = [(name, module) for name, module in part.named_modules() if isinstance(module, LAYERS_WITH_CLASSES)]
        if layers and outputs_of(layers[-1][1]) == old_classes:
            name = ".".join(piece for piece in (part_name, layers[-1][0]) if piece)
            heads[name] = layers[-1][1]
    if not heads:
        raise InputError(
            f"the head of this model was not found: no last layer has the {old_classes} outputs of {origin}. "
            f"Leave num_classes at {old_classes}, or give a model function that replaces the head itself."
        )
    for name, head in heads.items():
        model.set_submodule(name, _like(head, classes))
    if getattr(model, "num_classes", None) == old_classes:
        model.num_classes = classes  # type: ignore[assignment]
    note(_head_note(dict.fromkeys(heads, (old_classes, classes)), origin))


def outputs_of(layer: torch.nn.Module) -> int:
    """Returns how many outputs a layer of `LAYERS_WITH_CLASSES` has."""
    return int(getattr(layer, "out_features", 0) or getattr(layer, "out_channels", 0))


def _like(layer: torch.nn.Module, outputs: int) -> torch.nn.Module:
    """A fresh layer of the same kind and settings, with another number of outputs."""
    fresh = copy.deepcopy(layer)
    for name in ("out_features", "out_channels"):
        if hasattr(fresh, name):
            setattr(fresh, name, outputs)
    for name, parameter in list(fresh.named_parameters(recurse=False)):
        setattr(fresh, name, torch.nn.Parameter(parameter.new_empty(outputs, *parameter.shape[1:])))
    assert isinstance(fresh, LAYERS_WITH_CLASSES)
    fresh.reset_parameters()
    return fresh


def _head_note(heads: Mapping[str, tuple[int, int]], origin: str) -> str:
    old, new = next(iter(heads.values()))
    return f"head {', '.join(heads)}: fresh values for {new} classes; {origin} has {old}."


def freeze_parameters(model: torch.nn.Module, patterns: Sequence[str]) -> list[str]:
    """Freezes parameters by shell-style patterns (`encoder.*`) and returns their names; adapters have frozen all already."""
    if adapter_record(model) is not None:
        return []
    parameters = dict(model.named_parameters())
    frozen: list[str] = []
    for pattern in patterns:
        matched = fnmatch.filter(parameters, pattern)
        if not matched:
            tops = sorted({f"{name.split('.')[0]}.*" if "." in name else name for name in parameters})
            raise InputError(
                f"freeze pattern {pattern!r} matches no parameter. Names look like {listed(list(parameters))}; "
                f"patterns that match: {listed(tops, 12)}."
            )
        frozen.extend(name for name in matched if name not in frozen)
    if patterns and len(frozen) == len(parameters):
        raise InputError(
            f"freeze {','.join(patterns)!r} matches all {len(parameters)} parameters, so nothing is left to train. "
            "Leave some out, for example the head."
        )
    for name in frozen:
        parameters[name].requires_grad_(False)
    return frozen
