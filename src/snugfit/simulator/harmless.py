"""A script that is only looked at leaves nothing behind: what it writes goes aside, and nothing is sent or started.

Python's own ways to files lead into a temporary folder that lies over the real ones: what was written there is read
again, everything else is read from where it is. An audit hook refuses what comes to a file by another way of Python's.
Libraries that write by code of their own in C (databases, pyarrow) are not seen, but for tokenizers. Pools of processes
are pools of threads.
"""

from __future__ import annotations

import builtins
import bz2
import importlib.util
import io
import multiprocessing.process
import os
import shutil
import stat
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

from snugfit.attributes import Change, replaced
from snugfit.errors import CannotSimulateError
from snugfit.simulator.nothing_pushed import nothing_pushed
from snugfit.simulator.started_programs import only_reads, programs
from snugfit.simulator.thread_pools import thread_pools

_QUIET = {
    "WANDB_MODE": "disabled", "COMET_MODE": "DISABLED", "NEPTUNE_MODE": "debug",
    "HF_HUB_OFFLINE": "1", "GIT_OPTIONAL_LOCKS": "0", "DO_NOT_TRACK": "1", "CLEARML_OFFLINE_MODE": "1",
}  # fmt: skip
"""Settings by which loggers and hubs stay silent."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_DEVICES = ("/dev/", "/proc/")
_guard: list[_Aside] = []
"""The folder that is in force, for the audit hook, which Python never lets go of."""


@contextmanager
def harmless() -> Iterator[None]:
    """Context in which code of a person's own writes aside, sends nothing, starts no process and reads no input."""
    with tempfile.TemporaryDirectory(prefix="snugfit-") as folder, ExitStack() as around:
        aside = _Aside(Path(folder), around)
        around.enter_context(_settings(folder))
        around.enter_context(replaced(aside.changes()))
        around.enter_context(replaced([*_refusals(), *programs(), *nothing_pushed()]))
        _begin_to_guard()
        _guard.append(aside)
        around.callback(_guard.remove, aside)
        yield


def read_from(path: Any) -> Any:
    """Returns where a file is read that code in C opens: aside, if it was written."""
    return _guard[-1].read(path) if _guard else path


class _Aside:
    """A folder over the real files: paths that were written are there, at their own names."""

    def __init__(self, folder: Path, around: ExitStack) -> None:
        self.folder = os.path.realpath(folder)
        self._around, self._follows_arrow = around, False

    def may_write(self, path: Any) -> bool:
        """Whether a path needs no other place."""
        return isinstance(path, int) or self._name(path).startswith((self.folder, *_DEVICES))

    def written(self, path: Any) -> Any:
        """Returns where a path is to be written."""
        if self.may_write(path):
            return path
        self._follow_arrow()
        place = self._place(path)
        _os["makedirs"](os.path.dirname(place), exist_ok=True)  # noqa: PTH120 Path would come back here
        return place

    def read(self, path: Any) -> Any:
        """Returns where a path is read: aside, if it was written."""
        if isinstance(path, int) or path is None:
            return path
        place = self._place(path)
        return place if _exists(place) else path

    def _follow_arrow(self) -> None:
        """Lets pyarrow, which opens files by C code, read what was written: `datasets` reads all that it prepares so."""
        arrow = sys.modules.get("pyarrow")
        if self._follows_arrow or not hasattr(arrow, "memory_map"):
            return
        self._follows_arrow = True

        def reading(original: Callable[..., Any]) -> Callable[..., Any]:
            return lambda source, *args, **kwargs: original(
                self.read(source) if isinstance(source, str | os.PathLike) else source, *args, **kwargs
            )

        names = ("memory_map", "input_stream")
        self._around.enter_context(replaced([(arrow, name, reading(getattr(arrow, name))) for name in names]))

    def _name(self, path: Any) -> str:
        return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 links are not followed

    def _place(self, path: Any) -> str:
        name = self._name(path)
        return name if name.startswith(self.folder) else self.folder + name

    def changes(self) -> list[Change]:
        """Returns what stands in for the ways to files."""

        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not set(mode) & set("wax+"):
                return _open(self.read(file), mode, *args, **kwargs)
            place = self.written(file)
            if set(mode) & set("a+") and "w" not in mode and place is not file and not _exists(place) and _exists(file):
                _copy(file, place)
            return _open(place, mode, *args, **kwargs)

        def low(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            place = self.written(path) if flags & _WRITING else self.read(path)
            if place is not path and _is_file(path) and not _exists(place):  # it is written for the first time
                if flags & os.O_EXCL:
                    raise FileExistsError(17, "File exists", path)
                if not flags & os.O_TRUNC:
                    _copy(path, place)
            fd: int = _os["open"](place, flags, mode, dir_fd=dir_fd)
            return fd

        def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
            if _exists(self.read(path)):
                raise FileExistsError(17, "File exists", path)
            _os["mkdir"](self.written(path), *args, **kwargs)

        def reading(name: str) -> Callable[..., Any]:
            return lambda path=".", *args, **kwargs: _os[name](self.read(path), *args, **kwargs)

        def removed(name: str) -> Callable[..., Any]:
            def remove(path: Any, *args: Any, **kwargs: Any) -> None:
                place = self.read(path)
                if self.may_write(place):  # what is real stays
                    _os[name](place, *args, **kwargs)

            return remove

        def moved(name: str) -> Callable[..., Any]:
            def move(source: Any, target: Any, **_: Any) -> None:
                place = self.read(source)
                if self.may_write(place):
                    _os[name](place, self.written(target))
                else:
                    _copy(place, self.written(target))

            return move

        def nothing(*_: Any, **__: Any) -> None:
            return None

        def utime(path: Any, *_: Any, **__: Any) -> None:
            if not _exists(self.read(path)):  # by which `Path.touch` learns that it has to make a file
                raise FileNotFoundError(2, "No such file or directory", path)

        rows: list[Change] = []
        if importlib.util.find_spec("tokenizers") is not None:
            from tokenizers import Tokenizer

            load, save = Tokenizer.from_file, Tokenizer.save
            rows += [
                (Tokenizer, "from_file", staticmethod(lambda path: load(self.read(path)))),
                (Tokenizer, "save", lambda one, path, *args, **kw: save(one, self.written(path), *args, **kw)),
            ]
        kept = [(tarfile, "bltn_open", opened), (bz2, "_builtin_open", opened)]  # by these since they were imported
        rows += [(builtins, "open", opened), (io, "open", opened), *kept]
        rows += [(os, "open", low), (os, "mkdir", mkdir), (os, "utime", utime)]
        rows += [(os, name, reading(name)) for name in ("stat", "lstat", "listdir", "scandir", "access", "statvfs")]
        rows += [(os, name, removed(name)) for name in ("remove", "unlink", "rmdir")]
        rows += [(os, name, moved(name)) for name in ("rename", "replace")]
        rows += [(os, name, nothing) for name in ("chmod", "symlink", "link")]
        return [*rows, (shutil, "rmtree", nothing)]


_open, _copy = builtins.open, shutil.copyfile
_os = {
    name: getattr(os, name)
    for name in (
        "open", "mkdir", "makedirs", "stat", "lstat", "listdir", "scandir", "access", "statvfs",
        "remove", "unlink", "rmdir", "rename", "replace",
    )
}  # fmt: skip


def _exists(path: Any) -> bool:
    try:
        _os["stat"](path)
    except (OSError, ValueError):
        return False
    return True


def _is_file(path: Any) -> bool:
    return _exists(path) and stat.S_ISREG(_os["stat"](path).st_mode)


@contextmanager
def _settings(folder: str) -> Iterator[None]:
    before, temporary, bytecode = dict(os.environ), tempfile.tempdir, sys.dont_write_bytecode
    # Code of hubs and metrics is written there to be imported, and imports see only what is really there.
    os.environ.update(_QUIET, TMPDIR=folder, HF_MODULES_CACHE=str(Path(folder) / "modules"))
    tempfile.tempdir, sys.dont_write_bytecode = folder, True
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        tempfile.tempdir, sys.dont_write_bytecode = temporary, bytecode


class _NoInput(io.TextIOBase):
    def read(self, *_: Any) -> NoReturn:
        raise CannotSimulateError("the script reads standard input. Give it what it asks for by arguments or a file.")

    readline = read


def _refusals() -> list[Change]:
    from snugfit.operators import host_speeds  # brings torch, which who only asks the worker goes without

    def start(process: Any, *_: Any) -> NoReturn:
        raise CannotSimulateError(
            f"the script starts a process of its own ({type(process).__name__}). An estimate looks at one: where each "
            "of them trains, say how many cards there are (--gpus N before the script), and the first is looked at."
        )

    def measured(*_: Any) -> NoReturn:
        raise PermissionError(f"no processor is timed {NOT_DONE}")

    return [
        (multiprocessing.process.BaseProcess, "start", start),
        (host_speeds, "measured_speeds", measured),
        *thread_pools(),
        (sys, "stdin", _NoInput()),
    ]


_hooked = False


def _begin_to_guard() -> None:
    global _hooked
    if not _hooked:
        sys.addaudithook(_audit_hook(_guard))
        _hooked = True


def _audit_hook(guard: list[_Aside]) -> Callable[[str, tuple[Any, ...]], None]:
    """Returns what refuses what is written past the folder, sent or started.

    It outlives this module when Python ends, so that everything it uses is its own.
    """
    writing, refused = _WRITING, frozenset(_STARTING)
    network = ("socket.connect", "socket.sendto")

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if not guard:
            return
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & writing and path is not None and not guard[-1].may_write(path):
                raise PermissionError(f"{path} is not written {NOT_DONE}")
        elif event in network:
            if not isinstance(args[1], str | bytes):  # those are sockets of this machine
                raise ConnectionRefusedError(NOT_SENT)
        elif event in refused:
            if event == "subprocess.Popen" and only_reads(args[1]):
                return
            raise PermissionError(f"no program is started {NOT_DONE}: {args[0] if args else event}")

    return audit


NOT_DONE = "in an estimate"
"""Ends the sentence on what was not done."""
NOT_SENT = f"nothing is sent {NOT_DONE}"
_STARTING = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn")
