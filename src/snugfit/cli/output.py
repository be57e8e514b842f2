"""What commands print on stdout: a card for people, or one JSON document."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from snugfit.errors import InputError

MOST = 2**31 - 1
"""The largest whole number that an option takes."""


def whole_number(text: str) -> int:
    """Reads the value of an option that counts something; for argparse's `type=`.

    Args:
        text: As typed.

    Returns:
        At least 1.

    Raises:
        argparse.ArgumentTypeError: It is none, or out of range.
    """
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number; give one, such as 8") from None
    if not 1 <= value <= MOST:
        raise argparse.ArgumentTypeError(f"{text} is out of range; give a whole number from 1 to {MOST}")
    return value


def some_path(text: str) -> Path:
    """Reads the path that an option takes; for argparse's `type=`.

    Args:
        text: As typed.

    Returns:
        The path.

    Raises:
        argparse.ArgumentTypeError: It is empty, which would mean the current folder.
    """
    if not text.strip() or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} names no file or folder; give a path")
    return Path(text)


def check_writable(**paths: Path | None) -> None:
    """Checks, leaving nothing behind, that files can be written; before the work that they are to hold.

    Args:
        **paths: Name of the option -> path that was given, or None.

    Raises:
        InputError: One cannot be written.
    """
    for name, path in paths.items():
        if path is None:
            continue
        option = "--" + name.replace("_", "-")
        if path.is_dir():
            raise InputError(f"{option} {str(path)!r} is a folder; give the name of a file, such as {path / name}.")
        try:
            if path.exists():
                if not os.access(path, os.W_OK):
                    raise PermissionError(13, "Permission denied")
            else:
                with tempfile.TemporaryFile(dir=path.parent):
                    pass
        except OSError as error:
            raise InputError(
                f"{option} {str(path)!r} cannot be written: {str(path.parent)!r}: {error.strerror}. Give a file in a folder "
                "that exists and can be written to."
            ) from error


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--json`.

    Args:
        parser: The subcommand's parser.
    """
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout, and nothing else there")


def print_json(document: Mapping[str, Any]) -> None:
    """Prints one JSON document on stdout.

    Args:
        document: Plain data; numbers are finite.
    """
    print(json.dumps(document, indent=2, allow_nan=False))


def print_card(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Prints a title and `name  value` lines on stdout.

    Args:
        title: One line.
        rows: Name and value; a value of several lines is indented under its first.
    """
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    print(title)
    for name, value in rows:
        first, *more = value.splitlines() or [""]
        print(f"  {name:<{width}}  {first}")
        for line in more:
            print(f"  {'':<{width}}  {line}")
