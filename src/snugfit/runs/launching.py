"""Starts the processes of a run by torch elastic, waits for them, and says why they ended where none of them could.

Each process carries out the run that it is sent (`snugfit.cli.rank`) and finds the others by what elastic puts into its
environment (`joining.py`). When one fails, elastic ends the others; when it ran out of memory, all are started again
(`restart.py`). A signal to this process becomes one Ctrl-C to each of them: they finish the step, save together and end.
Should this process be killed, they end by themselves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from snugfit.errors import InputError, TrainingError, TrainingStopped, is_on_command_line, option
from snugfit.runs.config import RunConfig
from snugfit.runs.joining import threads_each
from snugfit.runs.others import LOST_EXIT
from snugfit.runs.restart import notes
from snugfit.runs.result import TrainResult
from snugfit.runs.run_files import RunFiles
from snugfit.runs.standing import STARTED_BY_US
from snugfit.runs.stop_signal import StopSignal
from snugfit.training.run_results import MODEL

_TOLD = (2, 3, 4, 5, 130, 143)
"""Exit codes of a process that has said why."""
_STOP_SECONDS = 3600
"""How long processes may take to finish their step and to save, once they were asked to stop."""


def check_machines(config: RunConfig, run_dir: str | Path | None) -> None:
    """Raises `InputError` where several machines could not meet; `run_dir`: as given."""
    nodes, rdzv = config.request.settings.nodes, config.rdzv
    if nodes > 1 and rdzv is None:
        raise InputError(
            f"{option('nodes')} {nodes} needs {option('rdzv HOST:PORT')}, where the machines meet: the name of one of them "
            "and a port that is free there, the same on all."
        )
    if nodes > 1 and run_dir is None:
        raise InputError(f"{option('nodes')} {nodes} needs {option('run_dir DIR')}, a folder that all machines see.")
    if rdzv is not None and not rdzv.rpartition(":")[2].isdecimal():
        raise InputError(f"{option('rdzv')} is {rdzv!r}; give HOST:PORT, such as node01:29500.")


def launched(config: RunConfig) -> TrainResult:
    """Carries a run out in processes of its own, again where memory ran out; returns what they came to."""
    import cloudpickle

    job = uuid.uuid4().hex[:8] if config.rdzv is None else f"{config.rdzv}-{config.run_dir.name}"
    known, attempt, given = len(notes(config.run_dir)), 0, config.request.given
    result: Any = None
    with tempfile.TemporaryDirectory(prefix="snugfit-") as folder:
        sent, said = Path(folder, "run"), Path(folder, "said")
        while True:
            said.unlink(missing_ok=True)
            _send(config, sent)
            command = ["-m", "snugfit.cli.rank", str(sent), str(said)]
            error = _run(command, config, f"{STARTED_BY_US}{job}-{attempt}")
            found = len(notes(config.run_dir))
            if error is None or isinstance(error, TrainingStopped) or found == known:
                break
            config, known, attempt = config.again(), found, attempt + 1
        if said.is_file():
            result = cloudpickle.loads(said.read_bytes())
    if isinstance(result, BaseException):
        raise result
    if error is not None:
        raise error
    if result is None:  # that of the first process, which was on another machine
        summary = RunFiles(config.run_dir).read_summary()
        assert summary is not None
        result = TrainResult.of(summary, first=False)
    finished: TrainResult = result
    return dataclasses.replace(finished, model=_with_what_was_learned(given.model, config.run_dir / MODEL))


def _send(config: RunConfig, file: Path) -> None:
    import cloudpickle

    try:
        file.write_bytes(cloudpickle.dumps((config, is_on_command_line())))
    except Exception as error:
        raise InputError(
            f"model, data or functions cannot be sent to other processes: {error}. Start the script with torchrun "
            f"--nproc-per-node {config.request.settings.gpus} instead; snugfit.train joins there."
        ) from error


def _run(command: list[str], config: RunConfig, name: str) -> BaseException | None:
    """Runs processes to their end; returns what to say of it where none of them has said it."""
    from snugfit.private_torch import elastic

    settings = config.request.settings
    meeting = elastic.Meeting(
        name=name,
        nodes=settings.nodes,
        each=settings.gpus,
        endpoint=config.rdzv,
        timeout=config.rdzv_timeout,
        stop_seconds=_STOP_SECONDS,
    )

    def ask_them() -> None:
        raise elastic.Asked(stop.received or signal.SIGINT)

    # The first signal to this process is a Ctrl-C to those it started, and the second ends them all.
    with _environment(config), StopSignal(ask_them) as stop:
        try:
            failed = elastic.run_processes(command, meeting)
        except elastic.Asked:
            return TrainingStopped(config.what_is_saved(), stop.received or signal.SIGINT)
        except KeyboardInterrupt:
            return TrainingStopped(f"stopped at once. {config.what_is_saved()}", stop.received or signal.SIGINT)
        except elastic.NotMetError as error:
            raise InputError(
                f"{settings.nodes} machines did not meet at {config.rdzv or 'localhost'} within {config.rdzv_timeout:g} s "
                f"({option('rdzv_timeout SECONDS')}): {error}. Give the same {option('rdzv')} on all of them, and a port "
                "that nothing else uses."
            ) from error
    if failed and stop.received is not None:
        return TrainingStopped(config.what_is_saved(), stop.received)
    return _failure(failed, config.what_is_saved()) if failed else None


def _failure(codes: Mapping[int, int], saved: str) -> BaseException:
    """The error for a process that failed and could not say why."""
    said = [code for code in codes.values() if code in _TOLD]
    if said and said[0] > 128:
        return TrainingStopped(saved, said[0] - 128)
    if said:
        error = TrainingError(f"a process failed; what it said stands above. {saved}")
        error.exit_code = said[0]
        return error
    failed = [(number, code) for number, code in codes.items() if code > 0 and code != LOST_EXIT]
    if failed:  # by an error that is no run's, whose traceback stands above, or by an end of its own
        number, code = failed[0]
        why = f"process {number} ended with exit code {code}"
        return TrainingError(f"{why}, and the others were stopped. {saved}")
    killed = {number: -code for number, code in codes.items() if code < 0 and -code != signal.SIGTERM}
    killed = killed or {number: -code for number, code in codes.items() if code < 0}
    if killed:
        number, by = next(iter(killed.items()))
        why = f"process {number} was ended by {signal.Signals(by).name}"
    else:
        why = "the connection to a process on another machine was lost"
    return TrainingError(f"{why}, and the others were stopped. {saved}")


def _with_what_was_learned(model: Any, weights: Path) -> Any:
    """The caller's module, or what its function builds, with the weights of a finished run.

    None where that is not all of it: a model by its name, one without values, or a file that holds adapters alone.
    """
    if model is None or not weights.is_file():
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
def _environment(config: RunConfig) -> Iterator[None]:
    """The processes' environment: threads, and gloo's way to others of this machine."""
    wanted = {"OMP_NUM_THREADS": str(threads_each(config.request.settings.gpus)), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if config.rdzv is None and sys.platform == "linux":
        wanted["GLOO_SOCKET_IFNAME"] = "lo"  # a machine's own name may not lead to it
    new = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]
