"""Files that appear under their name only when they are complete. Imports no torch."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

TEMPORARY_PREFIX = ".writing-"


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Writes a file that appears under its name only when it is complete and on the disk.

    Args:
        path: Final name; an existing file is replaced in one step.

    Yields:
        The name of an empty temporary file in the same directory, to be written and closed. It is removed when the
        block raises.

    Raises:
        OSError: The file cannot be written; whatever stood under `path` is still there.
    """
    handle, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        flush(temporary)
        # mkstemp makes files private; the result gets the permissions that any new file of this user has.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # makes the rename survive a power cut; not every file system offers it
        flush(path.parent)


def remove_leftovers(directory: Path) -> None:
    """Removes temporary files and folders that a killed process left behind.

    Args:
        directory: Where `replaced_file` writes; no other process may be writing there.
    """
    for path in directory.glob(TEMPORARY_PREFIX + "*"):
        remove(path)


def remove(path: Path) -> None:
    """Removes a file, or a folder with all that is in it; what is not there is no error.

    Args:
        path: The file or folder.
    """
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Puts what was written to a file, or the names in a directory, on the disk.

    Args:
        path: The file or directory.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_model(path: Path, state: Mapping[str, Tensor]) -> None:
    """Writes a state dict as safetensors, complete or not at all.

    Tied tensors are stored under each of their names, so that a plain model loads the file with `strict=True`.

    Args:
        path: Final name of the file.
        state: Parameter or buffer name -> tensor on any device.

    Raises:
        OSError: The disk is full or the file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    stored: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in state.items():
        plain = tensor.detach().cpu().contiguous()  # on the host: a card may be full
        storage = plain.untyped_storage()
        # The format refuses tensors that share memory with another one or with the rest of a larger storage.
        shared = storage.data_ptr() in seen or storage.nbytes() != plain.nbytes
        seen.add(storage.data_ptr())
        stored[name] = plain.clone() if shared else plain
    with replaced_file(path) as temporary:
        try:
            save_file(stored, temporary, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error), str(path)) from error
