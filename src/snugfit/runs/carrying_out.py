"""Carries a run out: parts, measurement, loop, result."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from snugfit.device_kinds import CPU
from snugfit.errors import InputError, OutOfMemoryError, TrainingError, TrainingStopped
from snugfit.measure.meter import Meter, memory_reader, meter_for
from snugfit.runs import joining, restart
from snugfit.runs.best import check_best
from snugfit.runs.budget_watch import BudgetWatch
from snugfit.runs.chosen import Chosen
from snugfit.runs.given import check_batch
from snugfit.runs.joining import Processes, processes_here
from snugfit.runs.loop import Loop, LoopResult, steps_of_run
from snugfit.runs.model_parts import stored_start
from snugfit.runs.parts import build_trainer, open_matching_data, with_task
from snugfit.runs.place import RunPlace, place_named
from snugfit.runs.progress import Progress
from snugfit.runs.request import How, Request, resume_command, saved_words
from snugfit.runs.result import TrainResult
from snugfit.runs.run_dir import RunDirectory
from snugfit.runs.stop_signal import StopSignal
from snugfit.runs.tensorboard import check_tensorboard, tensorboard_rows
from snugfit.runs.text_parts import save_for_transformers
from snugfit.runs.tuned import watch_tuning, with_rivals_to_time
from snugfit.techniques.adapter.layers import adapted_layers
from snugfit.training.adapter_file import merge_adapter
from snugfit.training.run_results import taken_in
from snugfit.training.tuning import STEPS_EACH, Tuning
from snugfit.training.whole_weights import Weights, is_packed, write_together
from snugfit.workloads.data import Splits
from snugfit.workloads.tasks import Task
from snugfit.workloads.weights import fingerprint
from snugfit.workloads.weights_file import layout_of

_SHOWN_FILES = 10
"""Number of unreadable files that the result names; it counts all of them."""
_LOGGER = logging.getLogger(__name__)


def carry_out(
    request: Request,
    how: How,
    choose: Callable[[Request, Splits, Task, RunPlace], Chosen],
    open_run: Callable[[Request, Chosen], RunDirectory],
) -> TrainResult:
    """Builds all parts, trains, and writes the result; nothing is written before every part exists.

    `choose`: returns the recipe, from the request with its task, the data, the task and the place.
    """
    where, processes = place_named(request.device), processes_here()
    request, task = with_task(request, download=how.download)
    data = open_matching_data(request, task, download=how.download)
    settings, given = request.settings, request.given
    assert settings.batch_size is not None
    if how.tensorboard:
        check_tensorboard()
    check_best(settings, task, data)
    if settings.batch_size > len(data.train):
        raise InputError(
            f"batch_size {settings.batch_size} is larger than the {len(data.train)} training samples of {data.name}; give "
            f"at most {len(data.train)}."
        )
    total_steps = steps_of_run(settings, len(data.train))
    chosen = choose(request, data, task, where)
    if processes.count > 1:
        from snugfit.runs.microbatches import with_microbatches_tried

        chosen = processes.from_first(lambda: with_microbatches_tried(chosen, request, data, task))
    where.check(chosen.recipe)
    chosen = with_rivals_to_time(chosen, where, total_steps)
    with contextlib.ExitStack() as around:
        device = around.enter_context(where.entered())
        # Each recipe that is timed is recorded to its end: what a change releases was then allocated before its eyes.
        meter = meter_for(device, window_steps=STEPS_EACH if chosen.to_be_tuned else 3)
        memory = memory_reader(device)  # before the meter warms up: what that leaves free is used by training
        around.enter_context(chosen.limited(device))
        if processes.count > 1 and device.type == CPU:
            from snugfit.private_torch.gloo import (
                letting_go,
            )  # loads torch's collectives, which one process never needs

            around.enter_context(letting_go())
        built = around.enter_context(_measuring(meter, None if given is None else given.model))
        trainer = build_trainer(chosen, request, data, device, task, total_steps)
        built()
        if given is not None and settings.evaluate:
            check_batch(trainer, data, task)
        layout_of(trainer.model.state_dict())  # what cannot be saved is said before the first step
        watch = BudgetWatch(meter, trainer, chosen.predicted)
        with open_run(request, chosen) as run_dir:
            tuning = watch_tuning(trainer, chosen, run_dir, meter)
            try:
                if not how.resume and chosen.recipe.quantize != "none":
                    stored = stored_start(request)
                    if stored is not None:
                        run_dir.note_start(fingerprint(stored))
                # Signals are caught from here on: what is trained is never lost between two statements.
                rows_wanted = how.tensorboard and processes.first
                with _stop_signal(processes) as stop, tensorboard_rows(run_dir.path, wanted=rows_wanted) as rows:
                    loop = Loop(trainer, data, task, run_dir, total_steps=total_steps, observer=watch, on_row=rows)
                    busy = time.process_time()
                    result = _run(loop, stop, how, memory)
                    busy = time.process_time() - busy
                if result.stopped_by is not None:
                    message = f"stopped after step {result.steps}. {_saved(run_dir, request)}"
                    raise TrainingStopped(message, result.stopped_by)
                measured = _of_all(processes, {**meter.result(trainer.peak_host_bytes), "busy_seconds": busy})
                summary = _summary(loop, request, chosen, where, measured, result, processes) | watch.result(measured)
                summary |= _tuned(tuning, chosen)
                _write_results(loop, request, summary, processes)
                processes.all(None)  # nobody leaves before all is written
            except OutOfMemoryError as error:
                if trainer.ranks is not None:
                    restart.note(run_dir.path, trainer, error.cause)
                raise _with_advice(error, run_dir, request) from error
            except TrainingError as error:
                told = type(error)(f"{error} {_saved(run_dir, request)}")
                told.left_to_others = error.left_to_others
                raise told from error
            except TrainingStopped:
                raise
            except KeyboardInterrupt:
                raise TrainingStopped(f"stopped at once. {_saved(run_dir, request)}", signal.SIGINT) from None
        if where.card is not None and processes.count == 1:  # of several nobody is given the model
            trainer.model.to(CPU)
    return TrainResult.of(summary, trainer.model if processes.count == 1 else None)


def _with_advice(error: OutOfMemoryError, run_dir: RunDirectory, request: Request) -> OutOfMemoryError:
    found = type(error)(f"{error} {_saved(run_dir, request)}", undone=error.undone)
    if joining.current is not None and joining.current.place.ours:
        found.left_to_others = True  # whoever has started the processes starts them again, or says it
    return found


@contextlib.contextmanager
def _measuring(meter: Meter, model: Any) -> Iterator[Callable[[], None]]:
    """Context of a measurement, ended however the run ends: a recording still open at exit crashes the process.

    Yields what is to be called when the run is built: weights that were there before belong to the run, too.
    """
    meter.start(model if isinstance(model, nn.Module) else None)
    try:
        yield meter.built
    finally:
        meter.result(0)


def _run(loop: Loop, stop: StopSignal, how: How, memory: Callable[[], tuple[int, int] | None]) -> LoopResult:
    done, total = loop.trainer.steps_done, loop.total_steps
    if how.resume and loop.resume():
        done = loop.trainer.steps_done
        _LOGGER.info("going on after step %d of %d steps.", done, total)
    elif how.resume:
        _LOGGER.info("no checkpoint was saved yet; starting over, %d steps.", total)
    if how.progress and processes_here().first:
        loop.progress = Progress(total_steps=total, steps_done=done, memory=memory)
    try:
        return loop.train(stop)
    except RuntimeError as error:
        if joining.current is None or not joining.current.lost():
            raise
        lost = TrainingError(
            f"the connection to another process was lost after step {loop.trainer.steps_done}: it has ended, or was killed."
        )
        lost.left_to_others = joining.current.place.ours
        raise lost from error
    finally:
        if loop.progress is not None:
            loop.progress.close()


def _announce_stop() -> None:
    sys.stderr.write("\nsnugfit: finishing this step, then saving; Ctrl-C again stops at once.\n")
    sys.stderr.flush()


def _stop_signal(processes: Processes) -> StopSignal:
    """The signal catcher of this process; the others learn of it with the next step, the first tells the person."""
    asked: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
    if joining.current is not None and joining.current.place.ours:
        asked = asked[:1]  # SIGTERM ends a process at once whose others are gone, wherever it waits for them
    return StopSignal(_announce_stop if processes.first else None, numbers=asked)


def _saved(run_dir: RunDirectory, request: Request) -> str:
    """A sentence on what an interrupted run leaves, and how to go on with it."""
    return saved_words(run_dir.path, resume_command(run_dir.path, request))


_PEAKS = ("peak_reserved_bytes", "peak_tensor_bytes", "peak_allocated_bytes")


def _of_all(processes: Processes, mine: dict[str, Any]) -> dict[str, Any]:
    """The measurement of the process that took most, with those of each as `ranks`; alone, its own."""
    every = processes.all(mine)
    if processes.count == 1:
        del mine["busy_seconds"]
        return mine
    peak = next(name for name in _PEAKS if mine.get(name) is not None)
    fullest = max(every, key=lambda one: one[peak])
    return {**{name: value for name, value in fullest.items() if name != "busy_seconds"}, "ranks": every}


def _unreadable(loop: Loop, processes: Processes) -> dict[str, Any]:
    """The files that any process could not read."""
    found = list(dict.fromkeys(name for names in processes.all(list(loop.data.unreadable)) for name in names))
    return {"files": len(found), "first": found[:_SHOWN_FILES]}


def _summary(
    loop: Loop,
    request: Request,
    chosen: Chosen,
    where: RunPlace,
    measured: Mapping[str, Any],
    result: LoopResult,
    processes: Processes,
) -> dict[str, Any]:
    trainer, task = loop.trainer, loop.task
    workload = trainer.workload.replace(max_steps=request.settings.max_steps)
    return {
        "recipe": trainer.recipe.to_mapping(),
        "workload": {**request.to_mapping(), "settings": workload.to_mapping()},
        "fidelity": dataclasses.asdict(trainer.fidelity),
        "measured": dict(measured),
        # Wall time says nothing of a card that is not there.
        "seconds": None if where.card else result.seconds,
        "samples_per_second": None if where.card else result.samples_per_second,
        "loading": None if where.card else result.loading,
        "metrics": result.metrics,
        "main_metric": {"name": task.main_metric, "higher_is_better": task.higher_is_better},
        "best": result.best,
        "stopped_early": result.stopped_early,
        "steps": result.steps,
        "steps_per_epoch": loop.steps_per_epoch,
        "unreadable": _unreadable(loop, processes),
        "device": where.name if where.card else str(trainer.device),
        "rehearsal": where.card is not None,
        "run_dir": str(loop.run_dir.path),
        "torch_version": str(torch.__version__),
    }


def _tuned(tuning: Tuning | None, chosen: Chosen) -> dict[str, Any]:
    """What the result says about the recipes that were timed, and what was promised for all of them."""
    found = chosen.tuned if tuning is None or tuning.kept is None else tuning.to_mapping()
    return {"tuning": found, "predicted": chosen.of_all_tried(found)}


def _write_results(loop: Loop, request: Request, summary: Mapping[str, Any], processes: Processes) -> None:
    """Writes the weights, and then the summary, whose presence says that the run is finished."""
    path, model = loop.run_dir.path, loop.trainer.model

    def write(weights: Weights) -> None:
        weights.write(path)
        with taken_in(path) as folder:
            save_for_transformers(folder, model, request, loop.data)

    try:
        write_together(loop.trainer, write)
    except OSError as error:
        raise TrainingError(f"the model cannot be written to {path}: {error.strerror}.") from error
    if processes.count == 1 and adapted_layers(model) and not is_packed(model):
        merge_adapter(model)  # whoever has given the model gets a plain one
    loop.run_dir.write_summary(summary)
