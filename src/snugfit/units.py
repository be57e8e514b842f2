"""Bytes are ints inside snugfit; text with units is read and printed only here.

GiB, MiB and KiB are powers of 1024; GB, MB and KB are powers of 1000. The two are never mixed up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from snugfit.errors import InputError

KIB, MIB, GIB = 2**10, 2**20, 2**30

_FACTORS = {
    "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": KIB, "MIB": MIB, "GIB": GIB, "TIB": 2**40,
}  # fmt: skip
_MOST = 2**63
"""More bytes than anything counts."""
_TEXT = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]+)\s*")


def parse_bytes(text: str | int, *, what: str = "size") -> int:
    """Returns the bytes that a text such as `8GiB` or `500 MB` means, more than 0; `what` is for messages.

    `text`: a number with a unit (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB; any case), or an int of bytes.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        size = text
    else:
        match = _TEXT.fullmatch(str(text))
        if match is None or match[2].upper() not in _FACTORS:
            raise InputError(
                f"{what} {text!r} is not understood. Give a number with a unit: B, KB, MB, GB, TB (powers of 1000) "
                "or KiB, MiB, GiB, TiB (powers of 1024), for example 8GiB."
            )
        number = float(match[1]) * _FACTORS[match[2].upper()]
        if number >= _MOST:
            raise InputError(f"{what} {text!r} is more than any memory. Give a smaller number.")
        size = int(number)
    if size <= 0:
        raise InputError(f"{what} {text!r} must be more than 0 bytes.")
    return size


def format_bytes(size_bytes: int, *, up: bool = False) -> str:
    """Returns bytes as people read them, in powers of 1024 with three significant digits, such as `1.25 MiB`.

    `up`: never fewer than there are, as of a budget that is to be enough.
    """
    size = float(abs(size_bytes))
    sign = "-" if size_bytes < 0 else ""
    if size < KIB:
        return f"{sign}{int(size)} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 999.5 or unit == "TiB":
            break
    digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
    if up:
        size = math.ceil(size * 10**digits) / 10**digits
    return f"{sign}{size:.{digits}f} {unit}"


def format_count(number: int) -> str:
    """Returns a large number of things in words, such as 11.7 million."""
    for unit, size in (("billion", 1e9), ("million", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def format_seconds(seconds: float) -> str:
    """Returns a duration as people read it, such as `350 ms`, `12.9 s` or `3 min 05 s`."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 99.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def numbers_in_words(numbers: Sequence[int]) -> str:
    """Returns rising whole numbers as ranges, such as `0-6, 8`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
