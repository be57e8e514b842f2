"""Metrics of a run in the loggers that people look at: TensorBoard, Weights & Biases, trackio, MLflow.

Each is opened, fed and closed by its own calls and under its own settings (`WANDB_MODE`, ...). A run that goes
on after a stop is one more run there, of the same name. A logger that fails on the way is left alone, and training goes on.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from snugfit.errors import InputError, did_you_mean, in_words, option, warn
from snugfit.library_imports import needed
from snugfit.training.run_results import TENSORBOARD

PROJECT = "snugfit"
"""Project, or experiment, of all runs, where the logger's own settings name none."""
Opened = tuple[Callable[[Mapping[str, float], int], object], Callable[[bool], object]]
"""What takes metrics and their step, and what ends a run, which is told whether it has failed."""


def _tensorboard(path: Path, settings: Mapping[str, Any]) -> Opened:
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = None

    def log(values: Mapping[str, float], step: int) -> None:
        nonlocal writer
        if writer is None:  # rows of a resumed run replace earlier ones
            writer = SummaryWriter(str(path / TENSORBOARD), purge_step=step)
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log, lambda failed: None if writer is None else writer.close()


def _wandb(path: Path, settings: Mapping[str, Any]) -> Opened:
    import wandb

    project = os.environ.get("WANDB_PROJECT", PROJECT)
    run = wandb.init(project=project, name=path.name, config=dict(settings), reinit="create_new")
    return lambda values, step: run.log(dict(values), step=step), lambda failed: run.finish(exit_code=int(failed))


def _trackio(path: Path, settings: Mapping[str, Any]) -> Opened:
    import trackio

    trackio.init(project=PROJECT, name=path.name, config=dict(settings))
    return lambda values, step: trackio.log(dict(values), step=step), lambda failed: trackio.finish()


def _mlflow(path: Path, settings: Mapping[str, Any]) -> Opened:
    import mlflow

    client = mlflow.MlflowClient()
    project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    there = client.get_experiment_by_name(project)
    experiment = client.create_experiment(project) if there is None else there.experiment_id
    run = client.create_run(experiment, run_name=path.name).info.run_id
    mlflow.log_params(dict(settings), run_id=run)

    def log(values: Mapping[str, float], step: int) -> None:
        mlflow.log_metrics(dict(values), step=step, run_id=run, synchronous=False)

    def end(failed: bool) -> None:
        mlflow.flush_async_logging()
        client.set_terminated(run, "FAILED" if failed else "FINISHED")

    return log, end


LOGGERS: dict[str, tuple[Callable[[Path, Mapping[str, Any]], Opened], str]] = {
    "tensorboard": (_tensorboard, "torch.utils.tensorboard"),
    "trackio": (_trackio, "trackio.run"),
    "wandb": (_wandb, "wandb.sdk"),
    "mlflow": (_mlflow, "mlflow.tracking"),
}
"""Name -> what opens it, and a module of the library: runs leave folders of its name, which import as well."""


def loggers_named(given: str | Iterable[str] | None) -> tuple[str, ...]:
    """Returns the loggers that were asked for, each once; `InputError` for unknown ones."""
    words = given.split(",") if isinstance(given, str) else given or ()
    names = tuple(dict.fromkeys(word.strip().lower() for word in words))
    for name in names:
        if name not in LOGGERS:
            raise InputError(f"{option('log_to')} is {name!r}, which is unknown; {did_you_mean(name, LOGGERS)}")
    return names


def check_loggers(names: Iterable[str]) -> None:
    """Raises `InputError` where a logger is not installed."""
    for name in names:
        extra = "report" if name == "tensorboard" else name
        needed(f"{option('log_to')} {name} needs", LOGGERS[name][1], library=name, install=f"snugfit[{extra}]")


class RunLog:
    """The open loggers of a run."""

    def __init__(self, predicted: Mapping[str, Any] | None) -> None:
        """Opens none; `predicted`: what a plan or a prediction promised."""
        self.opened: dict[str, Opened] = {}
        self._first: Mapping[str, float] = _memory("predicted", predicted)

    def take(self, row: Mapping[str, Any]) -> None:
        """Takes a row of metrics, with the predicted memory beside the first."""
        values = {name: value for name, value in row.items() if name not in ("step", "epoch") and value is not None}
        self._log({**values, **self._first}, row["step"])
        self._first = {}

    def end(self, summary: Mapping[str, Any]) -> None:
        """Takes the document of a run that has reached its end: its measured memory, beside the predicted."""
        memory = {**_memory("predicted", summary["predicted"]), **_memory("measured", summary["measured"])}
        self._log(memory, summary["steps"])

    def _log(self, values: Mapping[str, float], step: int) -> None:
        for name in tuple(self.opened):
            with self._left_alone(name):
                self.opened[name][0](values, step)

    def close(self, failed: bool) -> None:
        """Ends what is open."""
        for name in tuple(self.opened):
            with self._left_alone(name):
                self.opened.pop(name)[1](failed)

    @contextlib.contextmanager
    def _left_alone(self, name: str) -> Iterator[None]:
        """Context that drops a logger which fails, and keeps what it prints off stdout."""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except Exception as error:
            self.opened.pop(name, None)
            warn(
                f"{name} takes no more metrics ({in_words(error)}); training goes on, and metrics.jsonl has all of them."
            )


@contextlib.contextmanager
def logged_to(
    names: Iterable[str], path: Path, settings: Mapping[str, Any], predicted: Mapping[str, Any] | None
) -> Iterator[RunLog]:
    """Context of a run that is logged.

    Args:
        names: Of loggers that are installed.
        path: The run directory, whose name is the run's; it need not exist yet.
        settings: What the run is made of, by name.
        predicted: As in `RunLog`.
    """
    log = RunLog(predicted)
    failed = True
    try:
        for name in names:
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    log.opened[name] = LOGGERS[name][0](path.absolute(), settings)
            except Exception as error:
                raise InputError(f"{option('log_to')} {name} does not start: {in_words(error)}.") from error
        yield log
        failed = False
    finally:
        log.close(failed)


def flat(**parts: Any) -> dict[str, Any]:
    """Returns settings by dotted names, as loggers compare them."""
    found: dict[str, Any] = {}
    for name, value in parts.items():
        inner = flat(**value) if isinstance(value, Mapping) else {}
        found |= {f"{name}.{key}": one for key, one in inner.items()} if inner else {name: value}
    return found


def _memory(prefix: str, document: Mapping[str, Any] | None) -> dict[str, float]:
    sizes = {name: value for name, value in (document or {}).items() if name.endswith("_bytes") and value is not None}
    return {f"memory/{prefix}_{name}": value for name, value in sizes.items()}
