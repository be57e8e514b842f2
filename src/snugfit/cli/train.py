"""`snugfit train`: trains a model on data by a recipe, measures it, and leaves a run directory."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.cli import budget, options, output, plan_options
from snugfit.cli.assembly import build_trainer, open_matching_data, resolve_device, with_task
from snugfit.cli.budget_watch import BudgetWatch, card_line
from snugfit.cli.request import Request, default_run_dir, new_request, resume_command, resumed_request
from snugfit.cli.text_assembly import save_for_transformers
from snugfit.errors import InputError, TrainingError
from snugfit.recipe import Recipe
from snugfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import torch

    from snugfit.measure.meter import Meter
    from snugfit.training.loop import Loop
    from snugfit.training.run_dir import RunDirectory
    from snugfit.training.run_state import LoopResult
    from snugfit.training.step import Trainer
    from snugfit.workloads.data import Splits
    from snugfit.workloads.tasks import Task
    from snugfit.workloads.text import TextSplits

EPILOG = """\
examples:
  snugfit train timm:vit_tiny_patch16_224 --data digits --model-arg img_size=16 --model-arg patch_size=4
  snugfit train torchvision:resnet18 --data cifar10:data --download --epochs 5 --precision bf16-mixed
  snugfit train models.py:build --data imagefolder:photos --weights model.safetensors --recipe recipe.yaml
  snugfit train hf:bert/config.json --task text-classification --data topics --batch-size 16 --max-steps 50
  snugfit train hf:llama --task causal-lm --data jsonl:chats.jsonl --prompt-column question --seq-len 512 --lr 1e-5
  snugfit train torchvision:resnet18 --data imagefolder:photos --batch-size 64 --budget 6GiB --allow rounding
  snugfit train --run-dir runs/resnet18-cifar10-data --resume
"""

_SHOWN_FILES = 10
"""Unreadable files that the result names; it counts all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `snugfit train`.

    Args:
        parser: The subcommand's parser.
    """
    parser.epilog = EPILOG
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        nargs="?",
        help="torchvision:NAME, timm:NAME, hf:DIR (with its weights), hf:DIR/config.json (random values) or "
        "path/file.py:function (with --resume: the run's)",
    )
    add(
        "--data",
        metavar="DATA",
        help="images: digits, cifar10:DIR, imagefolder:DIR; text: topics, prose, csv:FILE, jsonl:FILE, parquet:FILE, "
        "text:FILE_OR_DIR, hf:NAME; random (with --resume: the run's)",
    )
    add("--model-arg", metavar="K=V", action="append", dest="model_args", help="argument of the model's constructor")
    add(
        "--task",
        metavar="TASK",
        help="image-classification, text-classification or causal-lm. Default: what data and model are for.",
    )
    add("--image-size", metavar="N", type=output.whole_number, help="side of the images. Default: the model's own.")
    add(
        "--samples",
        metavar="N",
        type=output.whole_number,
        help="training samples at most; of random data, how many there are",
    )
    add(
        "--strict",
        action="store_true",
        default=None,
        help="stop at an image file that cannot be read; otherwise it is skipped and counted",
    )
    add("--download", action="store_true", help="fetch data and hf: model when they are not there")
    add("--device", choices=("auto", "cpu", "cuda"), help="where to train. Default: auto, cuda where there is one.")
    group = parser.add_argument_group("text")
    add = group.add_argument
    add(
        "--seq-len",
        metavar="N",
        type=output.whole_number,
        help="most tokens of a text. Default: 512, or fewer where the model takes fewer.",
    )
    add(
        "--packing",
        action="store_true",
        default=None,
        help="lay short texts end to end in rows of exactly --seq-len tokens (causal-lm)",
    )
    add("--text-column", metavar="NAME", help="column of the texts, or of what follows a prompt. Default: by its name.")
    add("--label-column", metavar="NAME", help="column of the labels. Default: by its name.")
    add(
        "--prompt-column",
        metavar="NAME",
        help="column of prompts, which are read and not learned. Default: by its name.",
    )
    group = parser.add_argument_group("run directory")
    add = group.add_argument
    add("--run-dir", metavar="DIR", type=output.some_path, help="where results go. Default: runs/MODEL-DATA, numbered.")
    add("--resume", action="store_true", help="go on with the run in --run-dir, exactly where it stopped")
    add("--overwrite", action="store_true", help="replace the run in --run-dir")
    add(
        "--keep-checkpoints",
        metavar="N",
        type=output.whole_number,
        default=2,
        help="newest checkpoints that stay. Default: 2.",
    )
    add("--tensorboard", action="store_true", help="also write event files for TensorBoard")
    output.add_json_option(parser)
    plan_options.add_budget_options(parser)
    options.add_recipe_options(parser)
    options.add_workload_options(parser)


def run(args: argparse.Namespace) -> int:
    """Trains, and prints the result.

    Args:
        args: What the command line gave.

    Returns:
        0 when the run is finished; 128 and the signal's number (130 for Ctrl-C) when it was stopped after saving.

    Raises:
        InputError: Something that was given cannot be used.
        TrainingError: Training failed; says what is saved and how to go on.
    """
    from snugfit.measure.fresh import ensure_tuned_process
    from snugfit.training.run_dir import RunDirectory, check_new

    _check_numbers(args)
    budget.check_budget_options(args)
    if args.resume and args.overwrite:
        raise InputError("--resume goes on with a run and --overwrite replaces it; give one of them.")
    if args.resume and args.run_dir is None:
        raise InputError("--resume needs --run-dir DIR, the run to go on with.")
    # Whatever needs no torch is checked before the process starts again with other allocator settings and loads it.
    if args.resume:
        path: Path = args.run_dir
        with RunDirectory.open(path, keep=args.keep_checkpoints) as run_dir:
            stored = Request.from_mapping(run_dir.read_workload())
            recipe, request = resumed_request(args, run_dir.read_recipe(), stored)
            summary = run_dir.read_summary()
            if summary is not None and summary["steps"] >= _wanted_steps(request, summary):
                print(f"snugfit: the run in {path} is finished; this is its result.", file=sys.stderr)
                _print_result(summary, as_json=args.json)
                return 0
            run_dir.check_checkpoints()
            chosen = budget.chosen_before(recipe, run_dir.read_plan())
            ensure_tuned_process()
            return _train(
                args,
                request,
                path,
                lambda *_: chosen,
                lambda known, chosen: run_dir.described(chosen.recipe, known.to_mapping()),
            )
    recipe, request = new_request(args)
    constraints = plan_options.constraints_of(args)
    path = args.run_dir if args.run_dir is not None else default_run_dir(request)
    check_new(path, overwrite=args.overwrite)
    ensure_tuned_process()

    def choose(known: Request, data: Splits | TextSplits, task: Task, device: torch.device) -> budget.Chosen:
        if args.budget is None:
            return budget.Chosen(recipe=recipe)
        return budget.chosen_by(budget.plan_training(known, data, task, device, args.budget, constraints))

    return _train(
        args,
        request,
        path,
        choose,
        lambda known, chosen: RunDirectory.create(
            path,
            chosen.recipe,
            known.to_mapping(),
            plan=chosen.plan,
            overwrite=args.overwrite,
            keep=args.keep_checkpoints,
        ),
    )


def _check_numbers(args: argparse.Namespace) -> None:
    if args.keep_checkpoints < 2:
        raise InputError(
            f"--keep-checkpoints is {args.keep_checkpoints}; give at least 2, so that a damaged one has a predecessor."
        )


def _wanted_steps(request: Request, summary: Mapping[str, Any]) -> int:
    """How long the run is to be: as long as it was, unless the command line asks for more."""
    settings = request.settings
    if settings.max_steps is not None:
        return settings.max_steps
    steps: int = settings.epochs * summary.get("steps_per_epoch", 1)
    return steps


def _train(
    args: argparse.Namespace,
    request: Request,
    path: Path,
    choose: Callable[[Request, Splits | TextSplits, Task, torch.device], budget.Chosen],
    open_run: Callable[[Request, budget.Chosen], RunDirectory],
) -> int:
    """Builds all parts, trains, and writes and prints the result; nothing is written before every part is there."""
    from snugfit.measure.meter import Meter
    from snugfit.training.loop import steps_of_run
    from snugfit.training.progress import memory_reader
    from snugfit.training.tensorboard import check_tensorboard
    from snugfit.workloads.tasks import task_named

    device = resolve_device(request.device)
    request = with_task(request, download=args.download)
    assert request.task is not None
    task = task_named(request.task)
    data = open_matching_data(request, download=args.download)
    settings = request.settings
    assert settings.batch_size is not None
    if args.tensorboard:
        check_tensorboard()
    if settings.batch_size > len(data.train):
        raise InputError(
            f"batch_size {settings.batch_size} is larger than the {len(data.train)} training samples of {data.name}; give "
            f"at most {len(data.train)}."
        )
    total_steps = steps_of_run(settings, len(data.train))
    chosen = choose(request, data, task, device)
    chosen.limit_memory(device)
    meter = Meter(device)
    with _measuring(meter):
        memory = memory_reader(device)
        trainer = build_trainer(chosen, request, data, device, task, total_steps)
        watch = BudgetWatch(meter, trainer, chosen.predicted)
        with open_run(request, chosen) as run_dir:
            try:
                loop, result = _run_loop(args, trainer, data, task, run_dir, total_steps, watch, memory)
                if result.stopped_by is not None:
                    print(f"snugfit: stopped after step {result.steps}. {_saved(run_dir)}", file=sys.stderr)
                    return 128 + result.stopped_by
                measured = meter.result(trainer.peak_host_bytes)
                summary = _summary(
                    trainer,
                    request,
                    task,
                    chosen.predicted,
                    measured,
                    result,
                    path,
                    loop.steps_per_epoch,
                    getattr(data, "unreadable", ()),
                )
                summary |= watch.result(measured)
                _write_results(run_dir, trainer, request, data, summary)
            except TrainingError as error:
                raise type(error)(f"{error} {_saved(run_dir)}") from error
            except KeyboardInterrupt:
                print(f"snugfit: stopped at once. {_saved(run_dir)}", file=sys.stderr)
                return 130
    _print_result(summary, as_json=args.json)
    return 0


@contextlib.contextmanager
def _measuring(meter: Meter) -> Iterator[None]:
    """Starts a measurement, and ends it however the run ends: a recording that is open at exit crashes the process."""
    meter.start()
    try:
        yield
    finally:
        meter.result(0)


def _run_loop(
    args: argparse.Namespace,
    trainer: Trainer,
    data: Splits | TextSplits,
    task: Task,
    run_dir: RunDirectory,
    total_steps: int,
    watch: BudgetWatch,
    memory: Callable[[], tuple[int, int] | None],
) -> tuple[Loop, LoopResult]:
    from snugfit.training.loop import Loop
    from snugfit.training.progress import Progress
    from snugfit.training.stop_signal import StopSignal

    # Signals are caught from here on: what is trained is never lost between two statements.
    with StopSignal(_announce_stop) as stop, _rows_to_tensorboard(args.tensorboard, run_dir.path) as on_row:
        loop = Loop(trainer, data, task, run_dir, total_steps=total_steps, observer=watch, on_row=on_row)
        if args.resume:
            there = loop.resume()
            word = (
                f"going on after step {trainer.steps_done} of"
                if there
                else "no checkpoint was saved yet; starting over,"
            )
            print(f"snugfit: {word} {total_steps} steps.", file=sys.stderr)
        loop.progress = Progress(total_steps=total_steps, steps_done=trainer.steps_done, memory=memory)
        try:
            return loop, loop.train(stop)
        finally:
            loop.progress.close()


def _rows_to_tensorboard(wanted: bool, path: Path) -> Any:
    if not wanted:
        return contextlib.nullcontext()
    from snugfit.training.tensorboard import tensorboard_rows

    return tensorboard_rows(path)


def _announce_stop() -> None:
    sys.stderr.write("\nsnugfit: finishing this step, then saving; Ctrl-C again stops at once.\n")
    sys.stderr.flush()


def _saved(run_dir: RunDirectory) -> str:
    """Says what a run that ended early leaves, and how to go on with it."""
    paths = run_dir.checkpoints.paths()
    saved = f"Saved: {paths[-1]}." if paths else "No checkpoint was saved yet, so the run starts over."
    return f"{saved} Go on with: {resume_command(run_dir.path)}"


def _summary(
    trainer: Trainer,
    request: Request,
    task: Task,
    predicted: Mapping[str, Any] | None,
    measured: Mapping[str, int | None],
    result: LoopResult,
    path: Path,
    steps_per_epoch: int,
    unreadable: Sequence[str],
) -> dict[str, Any]:
    import torch

    workload = trainer.workload.replace(max_steps=request.settings.max_steps)
    return {
        "recipe": trainer.recipe.to_mapping(),
        "workload": {**request.to_mapping(), "settings": workload.to_mapping()},
        "fidelity": dataclasses.asdict(trainer.fidelity),
        "predicted": None if predicted is None else dict(predicted),
        "measured": dict(measured),
        "seconds": result.seconds,
        "samples_per_second": result.samples_per_second,
        "metrics": result.metrics,
        "main_metric": {"name": task.main_metric, "higher_is_better": task.higher_is_better},
        "steps": result.steps,
        "steps_per_epoch": steps_per_epoch,
        "unreadable": {"files": len(unreadable), "first": list(unreadable[:_SHOWN_FILES])},
        "device": str(trainer.device),
        "run_dir": str(path),
        "torch_version": torch.__version__,
    }


def _write_results(
    run_dir: RunDirectory,
    trainer: Trainer,
    request: Request,
    data: Splits | TextSplits,
    summary: Mapping[str, Any],
) -> None:
    """Writes the weights, and then the summary, whose being there says that the run is finished."""
    from snugfit.training.adapter_file import save_trained

    try:
        save_trained(run_dir.path, trainer.model)
        with run_dir.beside() as folder:
            save_for_transformers(folder, trainer.model, request, data)
    except OSError as error:
        raise TrainingError(f"the model cannot be written to {run_dir.path}: {error.strerror}.") from error
    run_dir.write_summary(summary)


def _print_result(summary: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.print_json(summary)
        return
    request = summary["workload"]
    title = f"{request['model']} on {request['data']}: {summary['steps']} steps of {request['settings']['batch_size']}"
    output.print_card(title, _card_rows(summary))


def _card_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    changed = Recipe.from_mapping(summary["recipe"]).to_mapping(defaults=False)
    yield "recipe", ", ".join(f"{name}={value}" for name, value in changed.items()) or "plain"
    reasons = summary["fidelity"]["reasons"].items()
    lines = [f"{name} ({level}): {reason}" for name, (level, reason) in reasons]
    yield "fidelity", "\n".join([summary["fidelity"]["level"], *lines])
    predicted = summary["predicted"] or {}
    if predicted:
        yield (
            "budget",
            f"{format_bytes(predicted['budget_bytes'])}, {format_bytes(predicted['margin_bytes'])} of it margin",
        )
    over = card_line(summary)
    if over is not None:
        yield "over budget", over
    for name, size in summary["measured"].items():
        if size is not None:
            beside = f", predicted {format_bytes(predicted[name])}" if predicted.get(name) is not None else ""
            yield name.removesuffix("_bytes").replace("_", " "), f"{format_bytes(size)}{beside}"
    yield "time", f"{format_seconds(summary['seconds'])}, {summary['samples_per_second']:.4g} samples/s"
    if predicted:
        step = summary["workload"]["settings"]["batch_size"] / summary["samples_per_second"]
        yield "step", f"{format_seconds(step)}, predicted {format_seconds(predicted['step_seconds'])}"
    metrics = summary["metrics"]
    shown = summary["main_metric"]["name"]
    for name in (f"test_{shown}", f"validation_{shown}"):
        if metrics[name] is not None:
            yield name.replace("_", " "), f"{metrics[name]:.2%}" if shown == "accuracy" else f"{metrics[name]:.4g}"
    if metrics["train_loss"] is not None:
        yield "train loss", f"{metrics['train_loss']:.4g}"
    skipped = summary.get("unreadable", {"files": 0})
    if skipped["files"]:
        yield "skipped", f"{skipped['files']} unreadable images, such as {skipped['first'][0]}"
    yield "files", summary["run_dir"]
