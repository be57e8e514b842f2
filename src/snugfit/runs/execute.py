"""Carries a run out: what is trained, by which recipe, measurement, loop, result.

Nothing is written before every part exists, and whatever ends the run says what is saved and how to go on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from snugfit.device_kinds import CPU
from snugfit.errors import NotFiniteError, OutOfMemoryError, TrainingError, TrainingStopped, note
from snugfit.measure.meter import Meter, memory_reader, meter_for
from snugfit.runs import others, restart
from snugfit.runs.budget_watch import BudgetWatch
from snugfit.runs.building import build_trainer
from snugfit.runs.chosen import Chosen
from snugfit.runs.config import RunConfig
from snugfit.runs.given import check_batch
from snugfit.runs.job import Job, open_job
from snugfit.runs.loggers import check_loggers, flat, logged_to
from snugfit.runs.loop import Loop
from snugfit.runs.loop_result import LoopResult
from snugfit.runs.model_parts import stored_start
from snugfit.runs.processes import Processes, processes_here
from snugfit.runs.progress import Progress
from snugfit.runs.result import TrainResult, measured_by_all, summary_of
from snugfit.runs.run_device import RunDevice, run_device
from snugfit.runs.run_dir import RunDirectory
from snugfit.runs.stop_signal import StopSignal
from snugfit.runs.text_parts import save_for_transformers
from snugfit.runs.tuned import watch_tuning, with_rivals_to_time
from snugfit.techniques.adapter.layers import adapted_layers
from snugfit.training.adapter_file import merge_adapter
from snugfit.training.run_results import taken_in
from snugfit.training.trainer import Trainer
from snugfit.training.tuning import STEPS_EACH
from snugfit.training.whole_weights import Weights, is_packed, write_together
from snugfit.workloads.stored_weights import fingerprint
from snugfit.workloads.weights_file import layout_of


def execute(config: RunConfig) -> TrainResult:
    """Builds all parts, trains, and writes the result."""
    processes = processes_here()
    with contextlib.ExitStack() as around:
        run_dir = None
        if config.resume:
            run_dir = RunDirectory.open(config.run_dir, keep=config.keep_checkpoints, writes=processes.first)
            around.enter_context(run_dir).check_checkpoints()
            config = dataclasses.replace(config, chosen=_after_shortages(config, processes))
        where = run_device(config.request.device)
        job = open_job(config.request, download=config.download)
        check_loggers(config.log_to)
        job.check()
        known = None if config.request.given.data is not None else job.data.fingerprint()
        if run_dir is not None:
            if known is not None:
                run_dir.check_data(known)
            code = config.request.model_file
            if code is not None and processes.first:
                run_dir.check_code(code)
            run_dir.check_length(job.steps)
        chosen = processes.from_first(lambda: _decided(config, job, where, processes))
        where.check(chosen.recipe)
        chosen = with_rivals_to_time(chosen, where, job.steps)
        settings = flat(recipe=chosen.recipe.to_mapping(), **job.request.to_mapping())
        names = config.log_to if processes.first else ()
        log = around.enter_context(logged_to(names, config.run_dir, settings, chosen.predicted))
        device = around.enter_context(where.entered())
        # Each recipe that is timed is recorded to its end: what a change releases was then allocated before its eyes.
        meter = meter_for(device, window_steps=STEPS_EACH if chosen.to_be_tuned else 3)
        memory = memory_reader(device)  # before the meter warms up: what that leaves free is used by training
        around.enter_context(chosen.limited(device))
        if processes.count > 1 and device.type == CPU:
            from snugfit.private_torch.gloo import letting_go  # loads torch's collectives, which one never needs

            around.enter_context(letting_go())
        built = around.enter_context(_measuring(meter, job.request.given.model))
        trainer = build_trainer(chosen, job, device)
        built()
        if job.request.given.any and job.settings.evaluate:
            check_batch(trainer, job.data, job.task)
        layout_of(trainer.model.state_dict())  # what cannot be saved is said before the first step
        watch = BudgetWatch(meter, trainer, chosen.predicted)
        if run_dir is None:
            run_dir = around.enter_context(_begun(config, job, chosen, known, processes))
        else:
            run_dir.describe(chosen.recipe, job.request.to_mapping())
        tuning = watch_tuning(trainer, chosen, run_dir, meter)
        with _saying_what_is_saved(config, trainer):
            if not config.resume and chosen.recipe.quantize != "none":
                stored = stored_start(job.request)
                if stored is not None:
                    run_dir.note_start(fingerprint(stored))
            # Signals are caught from here on: what is trained is never lost between two statements.
            with _stop_signal(processes) as stop:
                loop = Loop(
                    trainer, job.data, job.task, run_dir, total_steps=job.steps, observer=watch, on_row=log.take
                )
                busy = time.process_time()
                result = _run(loop, stop, config, memory)
                busy = time.process_time() - busy
            if result.stopped_by is not None:
                raise TrainingStopped(f"stopped after step {result.steps}. {config.what_is_saved()}", result.stopped_by)
            measured = measured_by_all(processes, {**meter.result(trainer.peak_host_bytes), "busy_seconds": busy})
            summary = summary_of(loop, job.request, where, measured, result, processes) | watch.result(measured)
            found = chosen.tuned if tuning is None or tuning.kept is None else tuning.to_mapping()
            summary |= {"tuning": found, "predicted": chosen.of_all_tried(found)}
            log.end(summary)
            _write_results(loop, job, summary)
            processes.all(None)  # nobody leaves before all is written
        model = trainer.model if processes.count == 1 else None  # of several nobody is given the model
        if where.card is not None and model is not None:
            model.to(CPU)
    return TrainResult.of(summary, model, first=processes.first)


def _begun(config: RunConfig, job: Job, chosen: Chosen, known: str | None, processes: Processes) -> RunDirectory:
    """The directory of a new run; the first process makes it, and the others go on when it is there.

    `known`: a fingerprint of the data.
    """
    path, keep = config.run_dir, config.keep_checkpoints
    if not processes.first:
        processes.all(None)
        return RunDirectory(path, keep=keep, writes=False)
    kept = job.request.to_mapping()
    made = RunDirectory.create(path, chosen.recipe, kept, plan=chosen.plan, overwrite=config.overwrite, keep=keep)
    if known is not None:
        made.note_data(known)
    if config.request.model_file is not None:
        made.note_code(config.request.model_file)
    processes.all(None)
    return made


def _after_shortages(config: RunConfig, processes: Processes) -> Chosen:
    """The recipe of a run that goes on: another one where memory ran out before."""
    before, settings = config.chosen, config.request.settings
    recipe = processes.from_first(
        lambda: restart.recipe_after(config.run_dir, before.recipe, before.fallbacks, settings)
    )
    return dataclasses.replace(before, recipe=recipe)


def _decided(config: RunConfig, job: Job, where: RunDevice, processes: Processes) -> Chosen:
    """The recipe, once it is planned or predicted, where that was asked for."""
    chosen = config.chosen
    if config.budget is not None or (config.predict and chosen.predicted is None):
        from snugfit.runs.planned import planned

        chosen = planned(config, job, where)
    if processes.count > 1:
        from snugfit.runs.microbatches import with_microbatches_tried

        chosen = with_microbatches_tried(chosen, job)
    return chosen


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


@contextlib.contextmanager
def _saying_what_is_saved(config: RunConfig, trainer: Trainer) -> Iterator[None]:
    """Context in which whatever ends the run early says how to go on with it."""
    ours = others.current is not None and others.current.rank.ours
    try:
        yield
    except TrainingError as error:
        if isinstance(error, OutOfMemoryError):
            if trainer.ranks is not None:
                restart.note(config.run_dir, trainer, error.cause)
            error.left_to_others = ours  # whoever has started the processes starts them again, or says it
        error.args = (f"{error} {config.what_is_saved(may_recur=isinstance(error, NotFiniteError))}",)
        raise
    except RuntimeError as error:
        if others.current is None or not others.current.lost():
            raise
        lost = TrainingError(
            f"the connection to another process was lost after step {trainer.steps_done}: it has ended, or was killed. "
            f"{config.what_is_saved()}"
        )
        lost.left_to_others = ours
        raise lost from error
    except TrainingStopped:
        raise
    except KeyboardInterrupt:
        raise TrainingStopped(f"stopped at once. {config.what_is_saved()}", signal.SIGINT) from None


def _run(loop: Loop, stop: StopSignal, config: RunConfig, memory: Callable[[], tuple[int, int] | None]) -> LoopResult:
    done, total = loop.trainer.steps_done, loop.total_steps
    if config.resume and loop.resume():
        done = loop.trainer.steps_done
        note(f"going on after step {done} of {total} steps.")
    elif config.resume:
        note(f"no checkpoint was saved yet; starting over, {total} steps.")
    if config.progress and processes_here().first:
        loop.progress = Progress(total_steps=total, steps_done=done, memory=memory)
    try:
        return loop.train(stop)
    finally:
        if loop.progress is not None:
            loop.progress.close()


def _announce_stop() -> None:
    sys.stderr.write("\nsnugfit: finishing this step, then saving; Ctrl-C again stops at once.\n")
    sys.stderr.flush()


def _stop_signal(processes: Processes) -> StopSignal:
    """The signal catcher of this process; the others learn of it with the next step, the first tells the person."""
    asked: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
    if others.current is not None and others.current.rank.ours:
        asked = asked[:1]  # SIGTERM ends a process at once whose others are gone, wherever it waits for them
    return StopSignal(_announce_stop if processes.first else None, numbers=asked)


def _write_results(loop: Loop, job: Job, summary: Mapping[str, Any]) -> None:
    """Writes the weights, and then the summary, whose presence says that the run is finished."""
    path, model = loop.run_dir.path, loop.trainer.model

    def write(weights: Weights) -> None:
        weights.write(path)
        with taken_in(path) as folder:
            save_for_transformers(folder, model, job.request, job.data)

    try:
        write_together(loop.trainer, write)
    except OSError as error:
        raise TrainingError(f"the model cannot be written to {path}: {error.strerror}.") from error
    if processes_here().count == 1 and adapted_layers(model) and not is_packed(model):
        merge_adapter(model)  # whoever has given the model gets a plain one
    loop.run_dir.write_summary(summary)
