"""What commands print on stdout: a card for people, or one JSON document."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from snugfit.device_kinds import KINDS, REHEARSE, SIMULATED
from snugfit.errors import InputError, did_you_mean
from snugfit.json_files import json_text
from snugfit.report.console import plain_for

MOST = 2**31 - 1
"""The largest whole number that an option takes."""


def whole_number(text: str) -> int:
    """Reads a count, at least 1; for argparse's `type=`."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number; give one, such as 8") from None
    if not 1 <= value <= MOST:
        raise argparse.ArgumentTypeError(f"{text} is out of range; give a whole number from 1 to {MOST}")
    return value


def some_path(text: str) -> Path:
    """Reads a path that is not empty (that would mean the current folder); for argparse's `type=`."""
    if not text.strip() or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} names no file or folder; give a path")
    return Path(text)


def check_files(args: argparse.Namespace, **endings: Sequence[str]) -> None:
    """Raises `InputError` unless files can be written, before the work for them; leaves nothing behind.

    `endings`: name of an option that takes a file -> the endings it may have; none: any.
    """
    for name, allowed in endings.items():
        path, option = getattr(args, name), "--" + name.replace("_", "-")
        if path is None:
            continue
        if allowed and path.suffix.lower() not in allowed:
            raise InputError(
                f"{option} {str(path)!r}: give a name that ends in {' or '.join(allowed)}, which says the format."
            )
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


@contextlib.contextmanager
def writing(path: Path, advice: str = "") -> Iterator[None]:
    """Context that turns a failed write into an `InputError` with advice (a sentence with a space before it)."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename or path} cannot be written: {error.strerror or error}.{advice}") from error


def write_file(path: Path | None, write: Callable[[Path], object]) -> None:
    """Calls `write` for the file that an option asked for, if any, and says so on stderr."""
    if path is not None:
        with writing(path):
            write(path)
        print(f"snugfit: wrote {path}", file=sys.stderr)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout, and nothing else there")


class DeviceAction(argparse.Action):
    """`--device`, a kind of device or a card to rehearse; refuses a second one, because only one can be meant."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Stores the value, or refuses it."""
        before, known = getattr(namespace, self.dest), ("auto", *(name for name in KINDS if name != SIMULATED))
        if before not in (None, values):
            parser.error(f"{option_string} is given twice, as {before} and as {values}")
        if values not in known and not values.startswith(REHEARSE):
            parser.error(
                f"{option_string} is {values!r}; {did_you_mean(values, (*known, f'{REHEARSE}CARD'))}".rstrip(".")
            )
        setattr(namespace, self.dest, values)


def print_json(document: Mapping[str, Any]) -> None:
    """Prints one JSON document on stdout."""
    print(json_text(document), flush=True)


def print_text(text: str) -> None:
    """Prints text on stdout, in characters that it can show."""
    print(plain_for(text, sys.stdout.encoding), flush=True)


def print_either(document: Mapping[str, Any], text: Callable[[], str], *, as_json: bool) -> int:
    """Prints a document on stdout, or what people read of it; returns the exit code of a command that is done."""
    if as_json:
        print_json(document)
    else:
        print_text(text())
    return 0


def print_result(result: Any, *, as_json: bool) -> int:
    """Prints a result on stdout, as text or as JSON; returns the exit code of a command that is done."""
    return print_either(result.to_mapping(), lambda: str(result), as_json=as_json)
