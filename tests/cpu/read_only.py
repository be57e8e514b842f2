"""A file system that takes nothing, also from root, whom no mode of a folder stops."""

import errno
import io
import os
from pathlib import Path


def refuse_writing(monkeypatch, folder, number=errno.EROFS, first=0):
    """Lets nothing be opened for writing under a folder, as a file system that is read-only (or full) does."""
    real, calls = os.open, [0]

    def opened(path, flags, *args, **settings):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and Path(os.fsdecode(path)).is_relative_to(folder):
            calls[0] += 1
            if calls[0] > first:
                raise OSError(number, os.strerror(number), str(path))
        return real(path, flags, *args, **settings)

    def open_file(path, mode="r", *args, **settings):
        if set(mode) & set("wax+") and not isinstance(path, int) and Path(path).is_relative_to(folder):
            raise OSError(number, os.strerror(number), str(path))
        return real_open(path, mode, *args, **settings)

    real_open = io.open
    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(io, "open", open_file)
