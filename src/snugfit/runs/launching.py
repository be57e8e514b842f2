"""Starts the processes of a run by torch elastic, waits for them, and says why they ended where none of them could.

Each process runs the same command and finds the others by what elastic puts into its environment (`joining.py`). When one
fails, elastic ends the others; when it ran out of memory, all are started again (`restart.py`). A signal to this process
becomes one Ctrl-C to each of them: they finish the step, save together and end. Should this process be killed, they end by
themselves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from snugfit.errors import InputError, TrainingError, TrainingStopped, option
from snugfit.runs.joining import DEFAULT_TIMEOUT, LOST_EXIT, threads_each
from snugfit.runs.request import free_run_dir, saved_words
from snugfit.runs.restart import notes
from snugfit.runs.result import TrainResult
from snugfit.runs.run_dir import WORKLOAD, RunDirectory, holds_run
from snugfit.runs.standing import STARTED_BY_US
from snugfit.training.run_results import MODEL
from snugfit.workload import Workload
from snugfit.yaml_files import read_yaml

SAID = "said"
"""File beside a pickled call, with the error of the process that reports it."""
_TOLD = (2, 3, 4, 5, 130, 143)
"""Exit codes of a process that has said why."""
STOP_SECONDS = 3600
"""How long processes may take to finish their step and to save, once they were asked to stop."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """What is started, and where."""

    gpus: int
    """Processes on this machine."""
    nodes: int = 1
    """Machines."""
    rdzv: str | None = None
    """HOST:PORT where machines meet."""
    timeout: float = DEFAULT_TIMEOUT
    """Seconds to wait for them."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How processes ended."""

    code: int
    """An exit code, as `snugfit train` has it."""
    message: str | None = None
    """What none of them could say."""


def machines_for(
    *,
    gpus: int | None = None,
    nodes: int | None = None,
    rdzv: str | None = None,
    rdzv_timeout: float | None = None,
    resume: bool = False,
    run_dir: str | Path | None = None,
    **_: object,
) -> Machines | None:
    """Returns what to start for a run; None where one process trains alone.

    `gpus`: as asked for; None: the run's that goes on, or 1.
    """
    before: dict[str, Any] = {}
    if resume and run_dir is not None and holds_run(Path(run_dir)):
        kept = read_yaml(Path(run_dir) / WORKLOAD, "run file", example="data: digits").get("settings")
        before = kept if isinstance(kept, dict) else {}
    settings = Workload(gpus=gpus or before.get("gpus", 1), nodes=nodes or before.get("nodes", 1))
    if settings.ranks == 1:
        return None
    if settings.nodes > 1 and rdzv is None:
        raise InputError(
            f"{option('nodes')} {settings.nodes} needs {option('rdzv HOST:PORT')}, where the machines meet: the name of one "
            "of them and a port that is free there, the same on all."
        )
    if settings.nodes > 1 and run_dir is None:
        raise InputError(
            f"{option('nodes')} {settings.nodes} needs {option('run_dir DIR')}, a folder that all machines see."
        )
    if rdzv is not None and not rdzv.rpartition(":")[2].isdecimal():
        raise InputError(f"{option('rdzv')} is {rdzv!r}; give HOST:PORT, such as node01:29500.")
    timeout = DEFAULT_TIMEOUT if rdzv_timeout is None else rdzv_timeout
    return Machines(gpus=settings.gpus, nodes=settings.nodes, rdzv=rdzv, timeout=timeout)


def launch(first: Sequence[str], again: Sequence[str], machines: Machines, run_dir: Path, how_to_resume: str) -> Ended:
    """Starts processes and waits for their end; `InputError` where the machines did not meet.

    `first`: the command of each, behind the interpreter.
    `again`: the one that goes on with the run, after memory ran out.
    `how_to_resume`: what a person types to go on.
    """
    known, attempt = len(notes(run_dir)), 0
    job = uuid.uuid4().hex[:8] if machines.rdzv is None else f"{machines.rdzv}-{run_dir.name}"
    while True:
        words, name = first if attempt == 0 else again, f"{STARTED_BY_US}{job}-{attempt}"
        ended = _run(words, machines, name, lambda: saved_words(run_dir, how_to_resume))
        found = len(notes(run_dir))
        if ended.code in (0, 130, 143) or found == known:
            return ended
        known, attempt = found, attempt + 1


def _run(command: Sequence[str], machines: Machines, name: str, saved: Callable[[], str]) -> Ended:
    from snugfit.private_torch import elastic

    meeting = elastic.Meeting(
        name=name,
        nodes=machines.nodes,
        each=machines.gpus,
        endpoint=machines.rdzv,
        timeout=machines.timeout,
        stop_seconds=STOP_SECONDS,
    )
    with _environment(machines), _signals() as stopped:
        try:
            failed = elastic.run_processes(command, meeting)
        except elastic.Asked:
            return Ended(code=128 + (stopped() or signal.SIGINT))
        except KeyboardInterrupt:
            return Ended(code=128 + (stopped() or signal.SIGINT), message=f"stopped at once. {saved()}")
        except elastic.NotMetError as error:
            raise InputError(
                f"{machines.nodes} machines did not meet at {machines.rdzv or 'localhost'} within {machines.timeout:g} s "
                f"({option('rdzv_timeout SECONDS')}): {error}. Give the same {option('rdzv')} on all of them, and a port "
                "that nothing else uses."
            ) from error
    return _told(failed, stopped(), saved) if failed else Ended(code=0)


def _told(codes: Mapping[int, int], stopped: int | None, saved: Callable[[], str]) -> Ended:
    """The error for a process that failed and could not say why."""
    if stopped is not None:
        return Ended(code=128 + stopped)
    said = [code for code in codes.values() if code in _TOLD]
    if said:
        return Ended(code=said[0])
    failed = [(number, code) for number, code in codes.items() if code > 0 and code != LOST_EXIT]
    if failed:  # by an error that is no run's, whose traceback stands above, or by an end of its own
        number, code = failed[0]
        why = f"process {number} ended with exit code {code}"
        return Ended(code=4, message=f"{why}, and the others were stopped. {saved()}")
    killed = {number: -code for number, code in codes.items() if code < 0 and -code != signal.SIGTERM}
    killed = killed or {number: -code for number, code in codes.items() if code < 0}
    if killed:
        number, by = next(iter(killed.items()))
        why = f"process {number} was ended by {signal.Signals(by).name}"
    else:
        why = "the connection to a process on another machine was lost"
    return Ended(code=4, message=f"{why}, and the others were stopped. {saved()}")


def launched(train: Callable[..., TrainResult], *given: Any, **named: Any) -> TrainResult:
    """Calls `snugfit.train` here if one process trains alone, else in each process that it starts."""
    machines = machines_for(**named)
    if machines is None:
        return train(*given, **named)
    import cloudpickle

    model, data = (*given, named.pop("model", None), named.pop("data", None))[:2]
    if named.get("run_dir") is None:
        named["run_dir"] = free_run_dir(model, data)
    run_dir = Path(named["run_dir"])
    gone_on: dict[str, Any] = {
        name: named[name] for name in ("device", "loss", "forward", "split", "collate") if name in named
    }
    gone_on |= {"run_dir": run_dir, "resume": True, "gpus": machines.gpus, "nodes": machines.nodes}
    with tempfile.TemporaryDirectory(prefix="snugfit-") as folder:
        calls = [Path(folder, name) for name in ("first", "again")]
        objects = [None if isinstance(one, str) else one for one in (model, data)]
        try:
            calls[0].write_bytes(cloudpickle.dumps(((model, data), {**named, "run_dir": run_dir})))
            calls[1].write_bytes(cloudpickle.dumps((tuple(objects), gone_on)))
        except Exception as error:
            raise InputError(
                f"model, data or functions cannot be sent to other processes: {error}. Start the script with torchrun "
                f"--nproc-per-node {machines.gpus} instead; snugfit.train joins there."
            ) from error
        commands = [["-m", "snugfit.cli.rank", str(call)] for call in calls]
        how = f"snugfit.train(model, data, run_dir={str(run_dir)!r}, resume=True)"
        ended = launch(commands[0], commands[1], machines, run_dir, how)
        said = Path(folder, SAID)
        if said.is_file():
            raise cloudpickle.loads(said.read_bytes())
    if ended.code in (130, 143):
        raise TrainingStopped(ended.message or saved_words(run_dir, how), ended.code - 128)
    if ended.code:
        raise TrainingError(
            ended.message or f"a process failed; what it said stands above. {saved_words(run_dir, how)}"
        )
    summary = RunDirectory.open(run_dir).read_summary()
    assert summary is not None
    return TrainResult.of(summary, _with_what_was_learned(model, run_dir / MODEL))


def _with_what_was_learned(model: Any, weights: Path) -> Any:
    """The caller's module, or what its function builds, with the weights of a finished run.

    None where that is not all of it: a model by its name, one without values, or a file that holds adapters alone.
    """
    if model is None or isinstance(model, str) or not weights.is_file():
        return None
    from safetensors.torch import load_file
    from torch import nn

    built = model if isinstance(model, nn.Module) else model()
    here, learned = built.state_dict(), load_file(weights)
    if here.keys() != learned.keys() or any(weight.is_meta for weight in here.values()):
        return None
    built.load_state_dict(learned)
    return built


@contextlib.contextmanager
def _environment(machines: Machines) -> Iterator[None]:
    """The processes' environment: threads, and gloo's way to others of this machine."""
    wanted = {"OMP_NUM_THREADS": str(threads_each(machines.gpus)), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if machines.rdzv is None and sys.platform == "linux":
        wanted["GLOO_SOCKET_IFNAME"] = "lo"  # a machine's own name may not lead to it
    new = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


@contextlib.contextmanager
def _signals() -> Iterator[Callable[[], int | None]]:
    """Context in which the first signal to this process is a Ctrl-C to those it started, and the second ends them all."""
    from snugfit.private_torch.elastic import Asked

    received: list[int] = []

    def handle(number: int, _: object) -> None:
        received.append(number)
        if len(received) == 1:
            raise Asked(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handle)
    try:
        yield lambda: received[0] if received else None
    finally:
        for number, old in before.items():
            signal.signal(number, old)
