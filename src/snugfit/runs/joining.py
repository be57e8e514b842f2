"""Processes that share a run: how one of them finds the others, what it hears from them, and who of them speaks.

Where a process stands is known from its environment (`standing.py`). Loads torch when there are several.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

from snugfit.device_kinds import CPU, CUDA, REHEARSE, default_device
from snugfit.errors import InputError, OutOfMemoryError, SnugfitError, TrainingStopped, option
from snugfit.runs.standing import Place, where_to_meet

T = TypeVar("T")

LOST_EXIT = 76
"""Exit code of a process that lost the others; `launching.py` says why. EX_PROTOCOL of sysexits."""
DEFAULT_TIMEOUT = 300
"""Seconds that processes wait for each other at the start."""
_STEP_TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others in a step, planning included: what NCCL and gloo were made for."""
_WATCH = timedelta(seconds=6)
"""Time limit for asking whether the others live: live ones that are busy let it pass, a dead one fails at once."""
_SAID = "snugfit/said"
"""How many processes have asked whether they are to tell of an error."""
_HOLD_SECONDS = 3.0
"""Seconds that the process with the store waits for the others to ask; one that is stuck never does."""


class Processes:
    """The processes of a run; a process that trains alone is the only one."""

    def __init__(self, number: int = 0, count: int = 1) -> None:
        """Takes the number of this process, and how many there are."""
        self.number, self.count = number, count

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return self.number == 0

    def from_first(self, make: Callable[[], T]) -> T:
        """Returns in all processes what the first one makes, or raises its error; the others wait."""
        if self.count == 1:
            return make()
        import torch.distributed as dist

        box: list[Any] = [None, None]
        if self.first:
            try:
                box[0] = make()
            except SnugfitError as error:
                box[1] = error
        dist.broadcast_object_list(box, src=0)
        if box[1] is not None:
            raise box[1]
        found: T = box[0]
        return found

    def all(self, mine: T) -> list[T]:
        """Returns everybody's values, by process."""
        if self.count == 1:
            return [mine]
        import torch.distributed as dist

        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, mine)
        return found


def processes_here() -> Processes:
    """Returns the processes that torch.distributed has; loads no torch."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return Processes()
    return Processes(dist.get_rank(), dist.get_world_size())


class Joined:
    """A process that has met the others."""

    def __init__(self, place: Place, store: Any) -> None:
        """Takes the store where all meet; made by `joined`."""
        self.place, self.store = place, store
        self.watch: Any = None
        """A group that only `lost` uses."""
        self._told = False
        self._asked = False

    def wait_for_all(self, seconds: float) -> None:
        """Waits at most this many seconds for the others; `InputError` where some did not come."""
        names = [f"snugfit/here/{number}" for number in range(self.place.count)]
        self.store.set(names[self.place.number], "1")
        try:
            self.store.wait(names, timedelta(seconds=seconds))
        except RuntimeError as error:
            try:
                missing = [str(number) for number, name in enumerate(names) if not self.store.check([name])]
            except RuntimeError:  # the first process holds the store; it has given up waiting, and said so
                self._told = True
                raise InputError("process 0 ended before all processes had come; it says why.") from error
            raise InputError(
                f"of {self.place.count} processes, number {', '.join(missing)} did not come within {seconds:g} s "
                f"({option('rdzv_timeout SECONDS')}). Start the same command on every machine, and as many processes as "
                "were announced."
            ) from error

    def speaks(self) -> bool:
        """Returns whether this process tells the person of an error: the first that asks does."""
        if self._told:
            return False
        self._asked = True
        try:
            return bool(self.store.add(_SAID, 1) == 1)
        except RuntimeError:  # the one that held the store is gone
            return self.place.number == 1

    def let_others_ask(self) -> None:
        """Waits until the others have asked who tells of an error, which ends most runs in all processes at once.

        The store ends with the first process, and a process that finds none would tell of the error once more.
        """
        if self.place.number > 0 or not self._asked or _by_launcher():
            return
        until = time.monotonic() + _HOLD_SECONDS
        while self.store.add(_SAID, 0) < self.place.count and time.monotonic() < until:
            time.sleep(0.01)

    def lost(self) -> bool:
        """Returns whether another process has died, once something has failed here."""
        if self.watch is None:
            return False
        import torch
        import torch.distributed as dist

        started = time.monotonic()
        try:
            dist.all_reduce(torch.zeros(()), group=self.watch)
        except RuntimeError:
            return time.monotonic() - started < _WATCH.total_seconds() / 2
        return False


current: Joined | None = None
"""The others, while a run with several processes is open."""


@contextlib.contextmanager
def joined(
    place: Place, *, device: str | None = None, rdzv: str | None = None, rdzv_timeout: float = DEFAULT_TIMEOUT
) -> Iterator[Joined | None]:
    """Context in which the processes have met; None where the program has joined them itself.

    `rdzv`: hOST:PORT where all meet, where the environment does not say it.
    """
    global current
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        raise InputError("this build of torch has no torch.distributed, so that one process must train alone.")
    kind = default_device() if device in (None, "auto") else str(device)
    if dist.is_initialized():
        yield None  # `prepare` looks whether its backend suits the device
        return
    if place.number > 0:
        _be_quiet()
    if place.ours:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    current = Joined(place, _store(place, rdzv, rdzv_timeout))
    current.wait_for_all(rdzv_timeout)
    if kind == CUDA:
        _check_cards(place)
        torch.cuda.set_device(place.local_number)
    elif kind == CPU or kind.startswith(REHEARSE):
        _use_threads(place)
    else:
        raise InputError(
            f"device {device!r} trains in one process; several share a run on cpu, cuda or {REHEARSE}CARD."
        )
    backend = _backend(kind)
    dist.init_process_group(
        backend, store=current.store, rank=place.number, world_size=place.count, timeout=_STEP_TIMEOUT
    )
    current.watch = dist.new_group(backend="gloo", timeout=_WATCH)
    yield current
    # Not after an error: the others may be gone, and it is still to be settled who tells of it.
    current = None
    dist.destroy_process_group()


def _backend(kind: str) -> str:
    """The backend for collectives between devices of a kind."""
    if kind.startswith(REHEARSE):
        from snugfit.fake_device import registration
        from snugfit.pretend_card import ranks

        registration.register()
        ranks.register()
        return ranks.BACKEND
    return "cpu:gloo,cuda:nccl" if kind == CUDA else "gloo"


def _store(place: Place, rdzv: str | None, timeout: float) -> Any:
    """Returns the store of the processes: of torch elastic, if it started them, or one that the first process holds."""
    import torch.distributed as dist

    from snugfit.private_torch.collectives import store_of_launcher

    os.environ.update(where_to_meet(place, rdzv))
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    wait = timedelta(seconds=timeout)
    try:
        if _by_launcher():
            return store_of_launcher(wait)
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store: Any = dist.TCPStore  # type: ignore[attr-defined]
        return _answered(
            lambda: store(host, port, place.count, place.number == 0, timeout=wait, wait_for_workers=False), timeout
        )
    except (RuntimeError, ValueError) as error:
        cause = " ".join(str(error).split())[:200].rstrip(".")
        if place.number == 0:
            raise InputError(
                f"process 0 of {place.count} cannot listen at {where}: {cause}. Give another port "
                f"({option('rdzv HOST:PORT')}, or MASTER_PORT)."
            ) from error
        raise InputError(
            f"process {place.number} of {place.count} found nobody at {where} within {timeout:g} s: {cause}. Is the "
            "first process running there?"
        ) from error


def _by_launcher() -> bool:
    """Whether torch elastic holds the store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _answered(make: Callable[[], T], seconds: float) -> T:
    """Calls a function with a time limit: where something else listens at a port, torch waits for it forever."""
    found: list[T | Exception] = []

    def run() -> None:
        try:
            found.append(make())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        raise RuntimeError("something listens there that does not answer as the first process would")
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _check_cards(place: Place) -> None:
    import torch

    there = torch.cuda.device_count()
    if there < place.local_count:
        raise InputError(
            f"{place.local_count} GPUs of this machine were asked for, and torch sees {there}. Give {option('gpus')} "
            f"{there}, or look at CUDA_VISIBLE_DEVICES."
        )


def _use_threads(place: Place) -> None:
    """Divides the machine's cores among its processes; torchrun gives each one thread if nobody says a number."""
    import torch

    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and not place.ours
    if "OMP_NUM_THREADS" not in os.environ or (by_torchrun and os.environ["OMP_NUM_THREADS"] == "1"):
        torch.set_num_threads(threads_each(place.local_count))


def threads_each(processes: int) -> int:
    """Returns how many threads each of several processes on this machine computes with."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // processes)


def _be_quiet() -> None:
    """Leaves notes and warnings to the first process, which has the same ones."""
    logging.getLogger("snugfit").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")


def _end_with(parent: int) -> None:
    """Ends this process when the one that started it is gone, however it ended."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(LOST_EXIT)


def end_at_once(code: int) -> None:
    """Ends this process at once if it has left the others without a word; returns otherwise.

    A thread of gloo that frees a tensor while Python shuts down is a process ended by SIGABRT, and the launcher would
    name it as the one that failed first.
    """
    if current is None:
        return
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody is left to read it
            stream.flush()
    current.let_others_ask()
    os._exit(code)


def ended_by(error: BaseException) -> int | None:
    """Returns the exit code where another process tells of the error; None where this one is to tell."""
    if current is None:
        return None
    if isinstance(error, SnugfitError):
        if getattr(error, "left_to_others", False):
            return error.exit_code if isinstance(error, OutOfMemoryError) else LOST_EXIT
        return None if current.speaks() else error.exit_code
    if isinstance(error, TrainingStopped):
        return None if current.place.number == 0 else 128 + error.signal
    if isinstance(error, RuntimeError) and current.lost():
        return LOST_EXIT
    return None if current.speaks() else 1
