"""Bytes and seconds, as people write and read them."""

import pytest

from snugfit import InputError
from snugfit.units import format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * 2**30),
        ("8 GB", 8 * 10**9),
        ("1.5 mib", 3 * 2**19),
        (".5KB", 500),
        ("12B", 12),
        ("1e3 kB", 10**6),
        (77, 77),
        (" 2 TiB ", 2**41),
    ],
)
def test_parse(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["8", "8G", "-1GB", "0GB", 0, -5, "GB", "", "nan GB", True, 1.5, "1e400GB", "1,5GB", None]
)
def test_parse_refuses(text):
    with pytest.raises(InputError, match="budget"):
        parse_bytes(text, what="budget")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1023 * 1024, "1.00 MiB"),
        (1310720, "1.25 MiB"),
        (99 * 2**20, "99.0 MiB"),
        (999 * 2**20, "999 MiB"),
        (2**40 * 5000, "5000 TiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_format_bytes(size, text):
    assert format_bytes(size) == text


def test_a_budget_that_is_to_be_enough_is_rounded_up():
    assert format_bytes(1231 * 2**20, up=True) == "1.21 GiB" and format_bytes(1231 * 2**20) == "1.20 GiB"
    assert format_bytes(3 * 2**30, up=True) == "3.00 GiB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.35, "350 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (12.94, "12.9 s"),
        (99.96, "1 min 40 s"),
        (185, "3 min 05 s"),
        (7322, "2 h 02 min"),
    ],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text
