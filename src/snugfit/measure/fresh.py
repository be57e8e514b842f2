"""Fresh processes whose memory can be read to the byte.

glibc keeps freed memory for later, so an ordinary process shows 7 to 8 % more at its peak than its tensors need. With the
two settings below every tensor of 64 KiB or more is a map of its own and goes back to the system when freed; the
process's peak then agrees with its tensors, and steps of small tensors are up to twice as slow. So only processes that are
asked for such numbers have them (`run_json`, `--exact-rss`), and not those that they start. glibc reads them only when a
process starts, so a command that is asked is replaced by itself, once, before torch is loaded. Imports no torch.

Source: mallopt(3), "Environment variables"; measured in tests/cpu/measure/test_meter.py.
"""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from snugfit.errors import SnugfitError

TUNED_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}
"""What a measured process starts with."""

_MARK = "snugfit-tuned"
"""Interpreter option (-X) of a process that was replaced once; it is never replaced again."""

_KEPT_LINES = 200
"""Lines of a command's stderr that are kept for its error message."""


class CommandError(SnugfitError):
    """A snugfit command in its own process failed; `exit_code` is what it ended with."""

    def __init__(self, message: str, exit_code: int) -> None:
        """Keeps the exit code beside the message.

        Args:
            message: What the command said.
            exit_code: What it ended with; 4 when a signal ended it.
        """
        super().__init__(message)
        self.exit_code = exit_code


def is_tuned() -> bool:
    """Returns whether this process was started with the settings of `TUNED_ENVIRONMENT`."""
    return all(os.environ.get(name) == value for name, value in TUNED_ENVIRONMENT.items())


def take_tuning() -> bool:
    """Returns whether this process is tuned; the settings are kept from processes that it starts, which nobody measures."""
    tuned = is_tuned()
    if tuned:
        for name in TUNED_ENVIRONMENT:
            del os.environ[name]
    return tuned


def ensure_tuned_process() -> None:
    """Replaces a `snugfit` command by itself with tuned memory settings; returns where that is done or has no place.

    Nothing happens off Linux, in a process that is tuned or was replaced before, once torch is loaded, and in programs
    that only call snugfit.
    """
    if sys.platform != "linux" or is_tuned() or _MARK in sys._xoptions:
        return
    if "torch" in sys.modules or not sys.executable or not _is_snugfit_command():
        return
    _replace_process()


def _is_snugfit_command() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(spec, "name", None) == "snugfit.__main__" or Path(sys.argv[0]).stem == "snugfit"


def _replace_process() -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = [sys.executable, "-X", _MARK, *sys.orig_argv[1:]]
    os.execve(sys.executable, arguments, {**os.environ, **TUNED_ENVIRONMENT})


def run_json(
    argv: Sequence[str],
    timeout_seconds: float | None = None,
    *,
    on_line: Callable[[str], None] | None = None,
    module: str = "snugfit",
    environment: Mapping[str, str] | None = None,
    tuned: bool = True,
) -> dict[str, Any]:
    """Runs a snugfit command in a fresh process and returns its JSON document.

    What the command writes to stderr (progress, warnings) is passed on line by line as it comes.

    Args:
        argv: The command and its options, without `snugfit` and without `--json`.
        timeout_seconds: Time after which the command is killed; None: no limit.
        on_line: Gets each line of the command's stderr, on another thread; None: it goes to stderr.
        module: The module that is run; another than snugfit must understand `--json` as it does.
        environment: What its environment has beside this process's own.
        tuned: Whether its memory can be read to the byte; small tensors are slower then.

    Returns:
        The document on the command's stdout.

    Raises:
        CommandError: The command failed, was killed, took too long, or wrote no JSON.
    """
    command = [sys.executable, "-m", module, *argv, "--json"]
    variables = {**os.environ, **(TUNED_ENVIRONMENT if tuned else {}), **(environment or {})}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)
    assert process.stdout is not None and process.stderr is not None
    lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
    errors = threading.Thread(target=_pass_on, args=(process.stderr, lines, on_line or _to_stderr), daemon=True)
    errors.start()
    timer = threading.Timer(timeout_seconds, process.kill) if timeout_seconds is not None else None
    if timer is not None:
        timer.start()
    try:
        output = process.stdout.read()
        code = process.wait()
    except KeyboardInterrupt:
        # The terminal's Ctrl-C reached the command too: let it save before this process goes.
        process.wait()
        raise
    finally:
        timed_out = timer is not None and timer.finished.is_set()
        if timer is not None:
            timer.cancel()
        errors.join(timeout=5)
    if code != 0:
        if timed_out:
            raise CommandError(f"stopped after {timeout_seconds} s, the time it was given.", 4)
        raise CommandError(_message(lines, code), code if code > 0 else 4)
    try:
        document = json.loads(output)
    except json.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise CommandError(f"`{module} {' '.join(argv)} --json` wrote no JSON document.", 4)
    return document


def _pass_on(stream: IO[str], lines: collections.deque[str], on_line: Callable[[str], None]) -> None:
    for line in stream:
        lines.append(line.rstrip("\n"))
        on_line(lines[-1])


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _message(lines: Sequence[str], code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (the system kills processes this way when memory runs out)" if name == "SIGKILL" else ""
        return f"the process was ended by signal {name}{hint}."
    starts = [at for at, line in enumerate(lines) if line.startswith("snugfit")]
    said = list(lines)[starts[-1] :] if starts else list(lines)[-1:]
    return "\n".join(said).removeprefix("snugfit: ").removeprefix("error: ") or f"it ended with exit code {code}."
