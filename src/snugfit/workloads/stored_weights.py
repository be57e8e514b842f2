"""Weights in safetensors files: names and shapes at hand, tensors read one at a time.

Only safetensors files are read: pickled checkpoints can run code when they are opened.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snugfit.errors import InputError

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
