"""Files that appear under their name only when they are complete. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

TEMPORARY_PREFIX = ".writing-"


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Writes a file that appears under its name, in place of an old one, only when it is complete and on the disk.

    Yields the name of an empty temporary file in the same directory, to be written and closed. It is removed when the
    block raises.
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


@contextlib.contextmanager
def filled_folder(path: Path) -> Iterator[Path]:
    """Context with an empty folder, whose files appear under `path` when all of them are complete.

    A new folder appears at once. In one that holds something already each file is replaced in one step, and what has
    other names stays.
    """
    path = path.resolve()
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=path.parent) as name:
            folder = Path(name) / path.name
            folder.mkdir()
            yield folder
            files = sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
            for file in files:
                flush(folder / file)
            if path.is_dir() and any(path.iterdir()):
                for file in files:
                    (path / file).parent.mkdir(parents=True, exist_ok=True)
                    (folder / file).replace(path / file)
            else:
                folder.replace(path)
    except BaseException:
        for made in missing:
            with contextlib.suppress(OSError):  # not there yet, or somebody else has put something in
                made.rmdir()
        raise
    with contextlib.suppress(OSError):
        flush(path.parent)


def remove_leftovers(directory: Path) -> None:
    """Removes temporary files that a killed process left; no other process may be writing there."""
    for path in directory.glob(TEMPORARY_PREFIX + "*"):
        remove(path)


def remove(path: Path) -> None:
    """Removes a file, or a folder with all that is in it; a missing one is no error."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Forces what was written to a file, or the names in a directory, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
