"""Checkpoints that are whole or absent; a checksum tells damage before anything is loaded.

File: 64 bytes of header (magic, payload length, SHA-256 of the payload), then what `torch.save` writes. Header and
payload are one file, so no crash can part them. It is written aside, flushed to the disk and renamed; only then may an
older checkpoint go. At every moment, power cuts included, the newest file is complete, or was damaged by the disk, which
the checksum shows; then the one before it is used.
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import torch

from snugfit.atomic_file import remove, replaced_file
from snugfit.errors import InputError, option, warn
from snugfit.runs.stop_signal import handed_over

if TYPE_CHECKING:
    from snugfit.runs.checkpoint_parts import Parts

MAGIC = b"snugfit-ckpt-1\n\0"
_HEADER = struct.Struct("<16sQ32s8x")
_PATTERN = "step-*.ckpt"


class DamagedCheckpointError(Exception):
    """A checkpoint file is cut short or altered; the message says how."""


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Writes one checkpoint, complete or not at all; `state` is tensors and plain data, nested."""
    with replaced_file(path) as temporary, temporary.open("wb") as file:
        file.write(bytes(_HEADER.size))
        payload = _HashingWriter(file)
        with handed_over(payload.stop):
            torch.save(state, payload)  # type: ignore[arg-type]
        if payload.error is not None:
            raise payload.error
        file.seek(0)
        file.write(_HEADER.pack(MAGIC, payload.size, payload.digest.digest()))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads one checkpoint into host memory, once length and checksum are right; else `DamagedCheckpointError`."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise DamagedCheckpointError(f"it ends after {len(header)} bytes, inside the header")
        magic, size, expected = _HEADER.unpack(header)
        if magic != MAGIC:
            raise DamagedCheckpointError("it does not start like a checkpoint")
        there = os.fstat(file.fileno()).st_size - _HEADER.size
        if there != size:
            raise DamagedCheckpointError(f"it holds {there} of {size} bytes")
        digest = hashlib.sha256()
        while chunk := file.read(2**20):
            digest.update(chunk)
        if digest.digest() != expected:
            raise DamagedCheckpointError("its checksum does not match its content")
        file.seek(_HEADER.size)
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return state


class CheckpointStore:
    """The checkpoints of one run: the newest few, named by step."""

    def __init__(self, directory: Path, *, keep: int = 2) -> None:
        """Names a directory; nothing is read or written yet.

        `keep`: how many of the newest checkpoints stay; at least 2, so that a damaged one has a predecessor.
        """
        assert keep >= 2, keep
        self.directory = directory
        self.keep = keep

    def paths(self) -> list[Path]:
        """Returns the files, oldest first."""
        return sorted(self.directory.glob(_PATTERN))

    def save(self, step: int, state: dict[str, Any], parts: Parts | None = None) -> Path:
        """Writes a checkpoint, then removes those no longer kept; where writing fails the earlier ones stay.

        `parts`: what this process writes of it where several save together; None: all of it.
        """
        self.directory.mkdir(exist_ok=True)
        path = self.directory / f"step-{step:08d}.ckpt"
        if parts is None or not parts.together:
            remove(path)
            save_checkpoint(path, state)
        else:
            parts.save(path, state)
        for old in self.paths()[: -self.keep] if parts is None or parts.first else ():
            remove(old)
        return path

    def load_newest(self, parts: Parts | None = None) -> dict[str, Any] | None:
        """Returns the newest undamaged state, None if nothing was saved; `InputError` if all are damaged.

        A damaged file is named in a warning and renamed, so that it is neither tried nor counted again.

        `parts`: puts what is read where this run wants it; None: a file of one process, as it is.
        """
        paths = self.paths()
        for path in reversed(paths):
            try:
                return load_checkpoint(path) if parts is None else parts.load(path)
            except DamagedCheckpointError as error:
                aside = path.with_suffix(".damaged")
                if parts is None or parts.first:
                    path.replace(aside)
                warn(f"checkpoint {path} is damaged: {error}. It is now {aside.name}.")
            except OSError as error:
                raise InputError(f"checkpoint {path} cannot be read: {error.strerror}.") from error
        if paths:
            raise InputError(
                f"no checkpoint in {self.directory} can be used: all are damaged. Start the run again with "
                f"{option('overwrite')}."
            )
        return None


class _HashingWriter:
    """Passes bytes on to a file, counts and hashes them.

    torch's archive writer turns a failed write into an internal error of its own and fails again while it closes, so an
    OSError or a Ctrl-C is kept here, and the rest is swallowed, until the archive is closed.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.digest = hashlib.sha256()
        self.size = 0
        self.error: OSError | KeyboardInterrupt | None = None

    def write(self, data: Any) -> int:
        block = memoryview(data).cast("B")
        if self.error is None:
            try:
                self.file.write(block)
            except OSError as error:
                self.error = error
            self.digest.update(block)
            self.size += len(block)
        return len(block)

    def stop(self, error: KeyboardInterrupt) -> None:
        """Keeps an error from outside; nothing is written from now on."""
        self.error = error

    def flush(self) -> None:
        """Does nothing: the file is flushed once, before it is renamed."""
