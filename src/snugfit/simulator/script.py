"""Runs a script as `python SCRIPT args...` would: its own argv, its own `__main__`, its folder first on the path."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from snugfit.errors import InputError

_WATCHING = tuple(f"{Path(__file__).parents[1] / room}{os.sep}" for room in ("fake_device", "recorder", "simulator"))
"""Where the code lies that stands between a script and its libraries."""


class EnoughSeen(BaseException):
    """Ends a script from inside; `except Exception` does not catch it, and `finally` blocks run."""


def check_script(script: str) -> Path:
    """Returns the path of a script; `InputError` for what is no Python program."""
    path, todo = Path(script), "Give the path of a Python file, then its own arguments."
    if not script.strip() or not path.is_file():
        what = "names no file" if not script.strip() else "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"script {script!r} {what}. {todo}")
    try:
        if path.suffix != ".pyc" and not zipfile.is_zipfile(path):  # which Python runs as well
            compile(path.read_bytes(), script, "exec", dont_inherit=True)
    except OSError as error:
        raise InputError(f"script {script!r} cannot be read: {error.strerror or error}. {todo}") from error
    except (SyntaxError, ValueError) as error:  # a ValueError for null bytes, until Python 3.12
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InputError(
            f"script {script!r}{line} is no Python: {getattr(error, 'msg', None) or error}. Mend it; nothing was run."
        ) from error
    return path


def run_script(path: Path, arguments: Sequence[str], *, before_exit: Callable[[], None]) -> int:
    """Runs a script in this process and returns the exit code Python would have; errors go to stderr.

    `before_exit`: called however the script ended, before its error is printed.
    """
    try:
        try:
            with as_main(path, arguments):
                runpy.run_path(str(path), run_name="__main__")
        finally:
            before_exit()
    except EnoughSeen:
        return 0
    except SystemExit as end:
        return exit_code(end)
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        print_error(error, path)
        return 1
    return 0


@contextmanager
def as_main(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Context in which arguments and path are those of a script that Python runs."""
    before = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    # What Python puts first for a script is the script's folder; here it may have put that of the snugfit command.
    sys.path[:] = [str(path.resolve().parent), *sys.path]
    try:
        yield
    finally:
        sys.argv = before[0]
        sys.path[:] = before[1]


def exit_code(end: SystemExit) -> int:
    """Returns the exit code that Python would have; a message instead of one goes to stderr."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    sys.stderr.write(f"{end.code}\n")
    return 1


def print_error(error: BaseException, path: Path) -> None:
    """Prints a traceback that begins in the script, as if it had been run alone."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(path):
        trace = trace.tb_next
    told = traceback.TracebackException(type(error), error, trace)
    told.stack[:] = [frame for frame in told.stack if not frame.filename.startswith(_WATCHING)]
    sys.stderr.writelines(told.format())
