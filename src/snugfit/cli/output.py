"""What commands print on stdout: a card for people, or one JSON document."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from snugfit.device_kinds import KINDS, REHEARSE, SIMULATED
from snugfit.errors import InputError, did_you_mean
from snugfit.report.console import plain_for

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


def check_files(args: argparse.Namespace, **endings: Sequence[str]) -> None:
    """Checks, leaving nothing behind, that files can be written; before the work that they are to hold.

    Args:
        args: What the command line gave.
        **endings: Name of an option that takes a file -> the endings it may have; none: any.

    Raises:
        InputError: One cannot be written, or has another ending.
    """
    for name, allowed in endings.items():
        path, option = getattr(args, name), "--" + name.replace("_", "-")
        if path is None:
            continue
        if allowed and path.suffix.lower() not in allowed:
            raise InputError(f"{option} {str(path)!r}: the file's ending says the format: {' or '.join(allowed)}.")
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
    """Says of a file or folder that cannot be written what to do.

    Args:
        path: What is written inside.
        advice: A sentence, with a space before it.

    Yields:
        Nothing.

    Raises:
        InputError: It could not be written.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename or path} cannot be written: {error.strerror or error}.{advice}") from error


def write_file(path: Path | None, write: Callable[[Path], object]) -> None:
    """Writes a file that an option asked for, and says so on stderr.

    Args:
        path: The file, or None.
        write: Writes it.

    Raises:
        InputError: It could not be written.
    """
    if path is not None:
        with writing(path):
            write(path)
        print(f"snugfit: wrote {path}", file=sys.stderr)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--json`.

    Args:
        parser: The subcommand's parser.
    """
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout, and nothing else there")


class DeviceAction(argparse.Action):
    """`--device`: a kind of device, or a card to rehearse; not a second time, for which of the two is meant?"""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Takes the value, or refuses it."""
        before, known = getattr(namespace, self.dest), ("auto", *(name for name in KINDS if name != SIMULATED))
        if before not in (None, values):
            parser.error(f"{option_string} is given twice, as {before} and as {values}")
        if values not in known and not values.startswith(REHEARSE):
            parser.error(
                f"{option_string} is {values!r}; {did_you_mean(values, (*known, f'{REHEARSE}CARD'))}".rstrip(".")
            )
        setattr(namespace, self.dest, values)


def print_json(document: Mapping[str, Any]) -> None:
    """Prints one JSON document on stdout.

    Args:
        document: Plain data; numbers are finite.
    """
    print(json.dumps(document, indent=2, allow_nan=False))


def print_text(text: str) -> None:
    """Prints a text for people on stdout, in characters that it can show.

    Args:
        text: Lines of text.
    """
    print(plain_for(text, sys.stdout.encoding), flush=True)


def print_result(result: Any, *, as_json: bool) -> None:
    """Prints a result on stdout.

    Args:
        result: Something with a text for people and a `to_mapping` for JSON.
        as_json: Which of the two.
    """
    if as_json:
        print_json(result.to_mapping())
    else:
        print_text(str(result))
