"""Torch elastic, by which the processes of a run are started and meet: what it takes, and how it tells of their end."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError, dynamic_rendezvous
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


class NotMetError(Exception):
    """The machines did not find each other."""


class Asked(SignalException):
    """Raised by a signal handler: every process is sent a Ctrl-C, and given time to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name, sigval=signal.SIGINT)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """How many processes are started, and where they meet."""

    name: str
    """Of this run: processes of another one are not taken in."""
    nodes: int
    """Machines."""
    each: int
    """Processes on this one."""
    endpoint: str | None
    """HOST:PORT where machines meet; None: there is only this one."""
    timeout: float
    """Seconds to wait for them."""
    stop_seconds: int
    """How long processes may take to end once they were asked to."""


def run_processes(command: Sequence[str], meeting: Meeting) -> dict[int, int]:
    """Runs `command` in processes and waits for them; when one fails, the others are ended.

    Returns the exit codes of those that failed, by the number of the process; of a signal, its negative number.
    """
    for one in [*logging.root.manager.loggerDict]:
        if one.startswith("torch.distributed.elastic"):  # what it says of signals and failures is said by us
            logging.getLogger(one).setLevel(logging.CRITICAL)
    waits = {"join_timeout": meeting.timeout, "read_timeout": min(60, int(meeting.timeout))}
    known = {field.name for field in dataclasses.fields(LaunchConfig)}
    newer: dict[str, Any] = {"shutdown_timeout": meeting.stop_seconds, "signals_to_handle": ""}
    with tempfile.TemporaryDirectory(prefix="snugfit-") as folder:
        config = LaunchConfig(
            min_nodes=meeting.nodes,
            max_nodes=meeting.nodes,
            nproc_per_node=meeting.each,
            run_id=meeting.name,
            rdzv_backend="c10d",
            rdzv_endpoint=meeting.endpoint or "localhost:0",
            rdzv_configs={**waits, "timeout": int(meeting.timeout)},
            local_addr="localhost" if meeting.endpoint is None else None,
            max_restarts=0,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            **{one: value for one, value in newer.items() if one in known},
        )
        try:
            with _names_of_methods_left_out():
                elastic_launch(config, sys.executable)(*command)
        except ChildFailedError as error:
            return {number: one.exitcode for number, one in error.failures.items()}
        except (RendezvousError, RuntimeError) as error:
            raise NotMetError(" ".join(str(error).split())[:200].rstrip(".") or type(error).__name__) from error
    return {}


@contextlib.contextmanager
def _names_of_methods_left_out() -> Iterator[None]:
    """Avoids a search of all modules for each log line of the rendezvous, for a method's name nobody reads."""
    before = dynamic_rendezvous.get_method_name
    dynamic_rendezvous.get_method_name = lambda depth=2: ""
    try:
        yield
    finally:
        dynamic_rendezvous.get_method_name = before
