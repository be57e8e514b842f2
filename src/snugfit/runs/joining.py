"""How one of the processes that share a run meets the others, and what it takes of the machine.

Where a process stands is known from its environment (`standing.py`). Loads torch when there are several.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

from snugfit.device_kinds import CPU, CUDA, REHEARSE, default_device
from snugfit.errors import InputError, message_of, option
from snugfit.machine import usable_processors
from snugfit.runs import others
from snugfit.runs.processes import DEFAULT_TIMEOUT
from snugfit.runs.standing import Rank, by_elastic, where_to_meet

T = TypeVar("T")

_STEP_TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others in a step, planning included: what NCCL and gloo were made for."""


@contextlib.contextmanager
def joined(
    rank: Rank | None, *, device: str | None = None, rdzv: str | None = None, rdzv_timeout: float = DEFAULT_TIMEOUT
) -> Iterator[None]:
    """Context in which the processes have met, as they have where the program has joined them itself; nothing alone.

    `rank`: where this process stands; None: alone.
    `rdzv`: HOST:PORT where all meet, where the environment does not say it.
    """
    if rank is None:
        yield
        return
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        raise InputError("this build of torch has no torch.distributed, so that one process must train alone.")
    kind = default_device() if device in (None, "auto") else str(device)
    if dist.is_initialized():
        yield  # `prepare` looks whether its backend suits the device
        return
    if rank.number > 0:
        _be_quiet()
    if rank.ours:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    others.current = here = others.Others(rank, _store(rank, rdzv, rdzv_timeout))
    here.wait_for_all(rdzv_timeout)
    if kind == CUDA:
        _check_cards(rank)
        torch.cuda.set_device(rank.local_number)
    elif kind == CPU or kind.startswith(REHEARSE):
        _use_threads(rank)
    else:
        raise InputError(
            f"device {device!r} trains in one process; several share a run on cpu, cuda or {REHEARSE}CARD."
        )
    backend = _backend(kind)
    dist.init_process_group(backend, store=here.store, rank=rank.number, world_size=rank.count, timeout=_STEP_TIMEOUT)
    here.watch = dist.new_group(backend="gloo", timeout=others.WATCH)
    yield
    # Not after an error: the others may be gone, and it is still to be settled who tells of it.
    others.current = None
    dist.destroy_process_group()


def _backend(kind: str) -> str:
    """The backend for collectives between devices of a kind."""
    if kind.startswith(REHEARSE):
        from snugfit.pretend_card import ranks
        from snugfit.recorder import registration

        registration.register()
        ranks.register()
        return ranks.BACKEND
    return "cpu:gloo,cuda:nccl" if kind == CUDA else "gloo"


def _store(rank: Rank, rdzv: str | None, timeout: float) -> Any:
    """Returns the store of the processes: of torch elastic, if it started them, or one that the first process holds."""
    import torch.distributed as dist

    from snugfit.private_torch.collectives import store_of_launcher

    os.environ.update(where_to_meet(rank, rdzv))
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    wait = timedelta(seconds=timeout)
    try:
        if by_elastic():
            return store_of_launcher(wait)
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store: Any = dist.TCPStore  # type: ignore[attr-defined]
        return _answered(
            lambda: store(host, port, rank.count, rank.number == 0, timeout=wait, wait_for_workers=False), timeout
        )
    except (RuntimeError, ValueError) as error:
        cause = message_of(error)
        if rank.number == 0:
            raise InputError(
                f"process 0 of {rank.count} cannot listen at {where}: {cause}. Give another port "
                f"({option('rdzv HOST:PORT')}, or MASTER_PORT)."
            ) from error
        raise InputError(
            f"process {rank.number} of {rank.count} found nobody at {where} within {timeout:g} s: {cause}. Is the "
            "first process running there?"
        ) from error


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


def _check_cards(rank: Rank) -> None:
    import torch

    there = torch.cuda.device_count()
    if there < rank.local_count:
        raise InputError(
            f"{rank.local_count} GPUs of this machine were asked for, and torch sees {there}. Give {option('gpus')} "
            f"{there}, or look at CUDA_VISIBLE_DEVICES."
        )


def _use_threads(rank: Rank) -> None:
    """Divides the machine's cores among its processes; torchrun gives each one thread if nobody says a number."""
    import torch

    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and not rank.ours
    if "OMP_NUM_THREADS" not in os.environ or (by_torchrun and os.environ["OMP_NUM_THREADS"] == "1"):
        torch.set_num_threads(threads_each(rank.local_count))


def threads_each(processes: int) -> int:
    """Returns how many threads each of several processes on this machine computes with."""
    return max(1, usable_processors() // processes)


def _be_quiet() -> None:
    """Leaves notes and warnings to the first process, which has the same ones."""
    logging.getLogger("snugfit").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")


def _end_with(parent: int) -> None:
    """Ends this process when the one that started it is gone, however it ended."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(others.LOST_EXIT)
