"""Messages between a process and its simulation workers: a length, then bytes; errors as plain data."""

from __future__ import annotations

import importlib
import struct
from typing import Any, BinaryIO

from snugfit.errors import SnugfitError

_LENGTH = struct.Struct("<Q")


def send(stream: BinaryIO, data: bytes) -> None:
    """Writes one message.

    Args:
        stream: Where to.
        data: The message.
    """
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: BinaryIO) -> bytes | None:
    """Reads one message.

    Args:
        stream: Where from.

    Returns:
        The message; None when the other side has closed the stream.
    """
    head = _read(stream, _LENGTH.size)
    return None if head is None else _read(stream, _LENGTH.unpack(head)[0])


def _read(stream: BinaryIO, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = stream.read(size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def error_to_plain(error: SnugfitError) -> dict[str, Any]:
    """Returns an error as plain data.

    Args:
        error: An error for people.

    Returns:
        Class, message and the attributes that are plain.
    """
    extra = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | tuple)}
    kind = type(error)
    return {"module": kind.__module__, "name": kind.__qualname__, "message": str(error), "extra": extra}


def error_from_plain(plain: dict[str, Any]) -> SnugfitError:
    """Returns the error that `error_to_plain` took apart.

    Args:
        plain: The plain data.

    Returns:
        An error of the same class with the same message.
    """
    kind = getattr(importlib.import_module(plain["module"]), plain["name"], SnugfitError)
    error: SnugfitError = kind.__new__(kind)
    Exception.__init__(error, plain["message"])
    vars(error).update(plain["extra"])
    return error
