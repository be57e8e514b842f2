"""Simulation workers: started once, kept warm, several at a time; a dead or stuck one is replaced, and says how it ended.

Not `concurrent.futures` and not loky: in both a worker that dies takes the work of all others with it (BrokenProcessPool,
TerminatedWorkerError, tried with one that calls `os._exit`), and a call that takes too long cannot be ended alone. The first
also runs the user's script again.
"""

from __future__ import annotations

import atexit
import contextlib
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from snugfit.errors import CannotSimulateError, InputError, in_words
from snugfit.report.waiting import waiting_for
from snugfit.uncollected import uncollected
from snugfit.workers import torch_settings
from snugfit.workers.worker_end import LastWords

T = TypeVar("T")
START_TIMEOUT_SECONDS = 120.0
DOING = "a simulation"
"""What a request is for, where nobody says."""


def _folder() -> str | None:
    """The current folder, which relative paths start from; None where it is gone."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


class Cancelled(BaseException):
    """A call's pool was cancelled: nobody waits for the answer. No `Exception`, as a search would go on after one."""


class _UnknownModuleError(InputError):
    """The simulation's process cannot import a module that this one has."""

    def __init__(self, name: str | None, text: str) -> None:
        super().__init__(
            f"the simulation's process cannot import {name or 'a module'} ({text}). Put the code that defines model and "
            "loss where `import` finds it: into a folder of sys.path, or an installed package."
        )
        self.name = name


class _UnreadError(InputError):
    """Something could be pickled and cannot be unpickled."""


class Worker:
    """One worker process."""

    def __init__(self) -> None:
        """Starts the process; it loads torch while the caller goes on."""
        self._last_words = LastWords()
        report = self._last_words.report_file
        self._process = subprocess.Popen(
            [sys.executable, "-m", "snugfit.workers.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=() if report is None else (report,),
        )
        self._stdin = cast(BinaryIO, self._process.stdin)
        self._stdout = cast(BinaryIO, self._process.stdout)
        self._last_words.read(cast(BinaryIO, self._process.stderr))
        self._ready = False
        self._send({"path": list(sys.path), "report": report})

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def call(self, request: bytes, timeout_seconds: float, doing: str = DOING) -> Any:
        """Sends a request from `skeleton.dumps` and returns its answer, or raises what it raised."""
        timed_out = threading.Event()

        def give_up() -> None:
            timed_out.set()
            self._process.kill()

        timer = threading.Timer(timeout_seconds + (0 if self._ready else START_TIMEOUT_SECONDS), give_up)
        timer.daemon = True
        timer.start()
        try:
            if not self._ready:
                pickle.load(self._stdout)
                self._ready = True
            self._last_words.forget()
            self._send((list(sys.path), _folder(), torch_settings.of_this_process(), request))
            answer = pickle.load(self._stdout)
        except (OSError, EOFError, pickle.UnpicklingError):  # the last of an answer that was cut off
            code = self._process.wait()
            if timed_out.is_set():
                raise CannotSimulateError(
                    f"{doing} took longer than {timeout_seconds:g} s in the simulation and was stopped. "
                    "Allow more time, or simulate a smaller model or fewer microbatches."
                ) from None
            raise CannotSimulateError(self._last_words.of(code, doing)) from None
        except KeyboardInterrupt:
            self.close()  # it would go on, and its answer would be taken for that of the next request
            raise
        finally:
            timer.cancel()
        with uncollected():
            kind, value = pickle.loads(answer)
        if kind == "error":
            raise value
        if kind == "unknown module":
            raise _UnknownModuleError(*value)
        if kind == "unread":
            raise _UnreadError(value)
        return value

    def _send(self, message: object) -> None:
        pickle.dump(message, self._stdin)
        self._stdin.flush()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):
                stream.close()
        self._last_words.close()


class Pool:
    """Workers that share the requests of any number of threads."""

    def __init__(self, workers: int = 1) -> None:
        """Makes a pool of at most so many workers; each starts with the first request that needs it."""
        if workers < 1:
            raise InputError(f"workers is {workers}; a simulation needs at least 1.")
        self._idle: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._idle.put(None)
        self._started: list[Worker] = []
        self.cancelled = False
        """Whether nobody waits for its answers any more."""
        atexit.register(self.close)

    def start(self, count: int = 1) -> None:
        """Starts workers in the background, so that the first requests find them warm.

        `count`: how many; at most as many as the pool has are started.
        """
        free = [self._idle.get() for _ in range(min(count, self._idle.qsize()))]
        for worker in free:
            self._idle.put(worker if worker is not None and worker.alive else self._new())

    def call(
        self,
        function: Callable[..., T],
        *args: Any,
        timeout_seconds: float = 600.0,
        doing: str = DOING,
        **kwargs: Any,
    ) -> T:
        """Runs a function in a worker; tensors in its arguments travel without values.

        `function`: what to run; anything that can be pickled, lambdas and closures included.
        `doing`: what it is for ("a training step of vit_l_16"), for the message of a worker that dies.
        """
        by_value: list[Any] = []
        unread: list[Any] = []
        while True:
            try:
                request = _request((function, args, kwargs), by_value, unread)
                result: T = self._call(request, timeout_seconds, doing)
                return result
            except _UnreadError as error:
                path, found = _not_read((function, args, kwargs), unread)
                if any(found is one for one in unread) or isinstance(found, tuple | list | dict):
                    raise InputError(_cannot_be_sent(path, found, str(error))) from error
                unread.append(found)
            except _UnknownModuleError as error:
                # A module that was loaded from a file by hand, say: its code travels with the request instead.
                module = sys.modules.get(error.name or "")
                if module is None or module in by_value:
                    raise
                by_value.append(module)

    def _call(self, request: bytes, timeout_seconds: float, doing: str) -> Any:
        worker = self._idle.get()
        try:
            if worker is None or not worker.alive:
                worker = self._new()
            if self.cancelled:  # while it started
                worker.close()
                raise Cancelled
            with waiting_for(doing):
                return worker.call(request, timeout_seconds, doing)
        except Exception:
            if self.cancelled:  # its worker was ended under it, at whatever point
                raise Cancelled from None
            raise
        finally:
            self._idle.put(worker)

    def _new(self) -> Worker:
        self._started = [worker for worker in self._started if worker.alive]
        worker = Worker()
        self._started.append(worker)
        return worker

    def close(self) -> None:
        """Ends all workers; the pool starts new ones when asked."""
        for worker in self._started:
            worker.close()
        self._started = []

    def cancel(self) -> None:
        """Ends all workers and every call, which raises `Cancelled`, now and from now on; from any thread."""
        self.cancelled = True
        self.close()
        atexit.unregister(self.close)


def _cannot_be_sent(path: str, found: Any, why: str) -> str:
    from snugfit.workers.odd_objects import name_of

    what = f"{path or 'something in model or step'}, of type {name_of(found)},"
    return (
        f"{what} cannot be sent to the simulation ({why[:300]}). Give a function that builds the model in place of the "
        "model, and leave what is no part of training out of loss and forward, or make it where it is used."
    )


def _not_read(request: object, known: Sequence[Any]) -> tuple[str, Any]:
    from snugfit.workers import skeleton

    return skeleton.not_read(request, known)


def _request(request: object, by_value: Sequence[Any], unread: Sequence[Any] = ()) -> bytes:
    """Pickles a request, with the code of some modules."""
    import cloudpickle

    with ExitStack() as around:
        for module in by_value:
            cloudpickle.register_pickle_by_value(module)
            around.callback(cloudpickle.unregister_pickle_by_value, module)
        try:
            return _dumps(request, unread)
        except Exception as error:
            raise InputError(_cannot_be_sent(*_not_read(request, unread), in_words(error))) from error


def _dumps(request: object, unread: Sequence[Any]) -> bytes:
    """Pickles a request; without tensors where torch was never loaded, so that it need not be."""
    if "torch" not in sys.modules:
        import cloudpickle

        plain: bytes = cloudpickle.dumps(request)  # functions of the script that runs go by value
        return plain
    from snugfit.workers import skeleton

    return skeleton.dumps(request, unread)


_shared: Pool | None = None


def shared_pool() -> Pool:
    """Returns the pool of this process, with one worker."""
    global _shared
    if _shared is None:
        _shared = Pool()
    return _shared
