"""`snugfit ladder`: the studies of the guides, each rung trained and measured, or predicted, in a fresh process.

Examples:
  snugfit ladder examples/digits_vit.py:model --data digits --epochs 12 --out runs/demo
  snugfit ladder torchvision:vit_l_16 --data cifar10:data --weights DEFAULT --lr 5e-5 --sgd-lr 5e-4
  snugfit ladder timm:resnet18 --data digits --rungs fp32,bf16-true,checkpoint
  snugfit ladder --preset distilbert-imdb --data csv:imdb.csv
  snugfit ladder --preset llama-8b --estimate --card rtx-4090
  snugfit ladder --preset vit-h-14-fsdp --data cifar10:data --gpus 4

The first rung is plain PyTorch; every other adds one technique to those before it. Each names its fidelity against the
first: exact (the same update), rounding (fewer bits somewhere), different (another algorithm or another batch).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from snugfit.cli import groups, options, output
from snugfit.cli.ladder_files import draw, output_directory, remove_earlier, write_config, write_document
from snugfit.cli.ladder_parts import DATA, PREDICTED, rung_words, use_preset
from snugfit.cli.ladder_shown import RUNG_NUMBERS, LadderProgress, print_header, rung_cells
from snugfit.device_kinds import BF16_SINCE, CUDA, REHEARSE
from snugfit.errors import InputError, RecipeError, SnugfitError
from snugfit.fields import field_infos, from_text
from snugfit.ladder import DEFAULT_ADAM_LR, DEFAULT_SGD_LR, Ladder, Rung, build_ladder
from snugfit.ladder_presets import PRESETS, Preset, preset_named
from snugfit.measure.device_probe import CPU, DeviceProbe, probe_device
from snugfit.report.console import row_of
from snugfit.runs.run_device import run_device
from snugfit.simulator.estimate import cards_of
from snugfit.workload import DEFAULT_BATCH_SIZE, Workload

TrainCommand = Callable[[Sequence[str]], Mapping[str, Any]]
"""Takes the arguments of `snugfit train` (or `estimate`) and returns its JSON document; raises `SnugfitError` when
the run failed."""
_TAKEN_OVER = ("predicted", "measured", "seconds", "samples_per_second", "metrics")
"""What a rung's entry has of the run's document."""

SHARED_SETTINGS = (
    *("weights", "freeze", "weight_decay", "no_decay"),
    *("lr_schedule", "warmup_steps", "epochs", "max_steps", "seed"),
    "gpus",
)
"""Training settings that are the same on every rung; the others are what the ladder changes."""


class LadderOptions:
    """Which ladder, and where its results go."""

    data: Annotated[str, "DATA"]
    """as for `snugfit train`; a preset without it takes random tokens or images"""
    estimate: bool = False
    """predict every rung, and train none"""
    card: groups.Name
    """the card of --estimate (snugfit devices), or cpu. Default: the preset's, else cpu."""
    rungs: Annotated[str, "NAMES"]
    """only these rungs, separated by commas; each stays as it is in the whole ladder"""
    out: groups.Folder
    """where results go. Default: runs/ladder-MODEL-DATA, numbered."""
    overwrite: bool = False
    """replace the ladder in --out"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `snugfit ladder`."""
    add = parser.add_argument
    add("model", metavar="MODEL", nargs="?", help="torchvision:NAME, timm:NAME, hf:NAME or path/file.py:function")
    add("--preset", metavar="NAME", help=f"a ladder by name, model and shapes included: {', '.join(PRESETS)}")
    batch_size = f"samples of an update on the first rung. Default: {DEFAULT_BATCH_SIZE}."
    add("--batch-size", metavar="N", dest="workload_batch_size", help=batch_size)
    add("--lr", metavar="X", dest="workload_lr", help=f"Adam's learning rate. Default: {DEFAULT_ADAM_LR:g}.")
    add("--sgd-lr", metavar="X", help=f"SGD's learning rate. Default: {DEFAULT_SGD_LR:g}.")
    options.add_options(parser, LadderOptions)
    output.add_json_option(parser)
    group = parser.add_argument_group("model and data, as for `snugfit train`")
    options.add_options(group, groups.DataOptions, "model_arg", *DATA, "device", judged=False)
    options.add_options(group, groups.ReadingOptions, *DATA, judged=False)
    group = parser.add_argument_group("training settings of every rung, as for `snugfit train`")
    options.add_fields(group, [field_infos(Workload)[name] for name in SHARED_SETTINGS], "workload_")


def run(args: argparse.Namespace, train: TrainCommand | None = None) -> int:
    """Trains rung after rung and reports them.

    `train`: what trains one rung; None: `snugfit train` in a fresh process.
    Returns 0 when the first rung was trained, else 4.
    """
    preset = None if args.preset is None else preset_named(args.preset)
    _check(args, preset)
    if preset is not None:
        use_preset(args, preset)
    device = _of_card(args.card or "cpu") if args.estimate else _probed(args.device or "auto")
    ladder = _ladder_of(args, preset, device=device.kind, bf16=device.bf16)
    out, made = output_directory(args, preset)
    if preset is not None:
        args.model = write_config(preset, out)
    progress = LadderProgress(len(ladder.rungs))
    train = train or functools.partial(_train_in_fresh_process, progress=progress)
    place = f"predicted for {args.card or 'cpu'}" if args.estimate else f"on {args.data}, {device.name}"
    title = f"{args.model if preset is None else preset.name} {place}"
    widths: list[int] = []
    rungs: list[dict[str, Any]] = []
    document = {
        "model": args.model,
        "preset": args.preset,
        "data": None if args.estimate else args.data,
        "device": args.card or "cpu" if args.estimate else device.name,
        "rungs": rungs,
        "left_out": ladder.left_out,
    }
    for rung in ladder.rungs:
        progress.begin(rung)
        try:
            rungs.append(_climb(rung, args, out, ladder, train))
        except SnugfitError as error:
            if rungs or error.exit_code != InputError.exit_code:
                rungs.append({**_entry(rung, out, ladder), "error": str(error)})
            else:  # model, data or settings are wrong: no rung can be climbed, so nothing is left behind or replaced
                if made is not None:
                    shutil.rmtree(made, ignore_errors=True)
                raise InputError(f"{error}\nThat was the first rung, {rung.name}; nothing was written.") from error
        finally:
            progress.end()
        if len(rungs) == 1:
            remove_earlier(out, keep=rung.name)
            if not args.json:
                print(title)
                widths = print_header([one.name for one in ladder.rungs], predicted=args.estimate)
        write_document(out, document)
        if not args.json:
            output.print_text(row_of(rung_cells(rungs[-1], rungs[0]), widths, RUNG_NUMBERS))
            if rungs[-1]["error"] is not None:
                print(f"    failed: {rungs[-1]['error']}")
    files = [out / "ladder.json", *draw(out, rungs, title)]
    if args.json:
        output.print_json(document)
    else:
        for rung in ladder.rungs:
            if rung.note:
                print(f"{rung.name}: {rung.note}")
        for name, reason in ladder.left_out.items():
            print(f"left out: {name}: {reason}")
        print(f"written: {', '.join(map(str, files))}")
    return 0 if rungs[0]["error"] is None else 4


def _check(args: argparse.Namespace, preset: Preset | None) -> None:
    if args.model is None and preset is None:
        raise InputError(f"MODEL must be given, or --preset with one of: {', '.join(PRESETS)}.")
    if args.data is None and preset is None and not args.estimate:
        raise InputError("--data must be given, for example `snugfit ladder timm:resnet18 --data digits`.")
    if args.card is not None and not args.estimate:
        raise InputError("--card is for --estimate; a run takes --device.")


def _of_card(name: str) -> DeviceProbe:
    """What a ladder must know of a card that it is predicted for."""
    card, *others = cards_of(name)
    if others:
        raise InputError(f"--card is {name!r}; a ladder is predicted for one card, so name one.")
    if card.memory_bytes is None:
        return CPU
    return DeviceProbe(CUDA, (card.compute_capability or BF16_SINCE) >= BF16_SINCE, card.vendor_name)


def _probed(name: str) -> DeviceProbe:
    """The device of a run; for a rehearsed card, its row of the table."""
    if not name.startswith(REHEARSE):
        return probe_device(name)
    card = run_device(name).card
    assert card is not None
    probe = _of_card(card.name)
    return dataclasses.replace(probe, name=f"{probe.name} (rehearsed)")


def _ladder_of(args: argparse.Namespace, preset: Preset | None, *, device: str, bf16: bool) -> Ladder:
    """Builds the ladder from the options, with all mistakes in one error."""
    infos = field_infos(Workload)
    values = options.given_fields(args, [infos[name] for name in (*SHARED_SETTINGS, "lr", "batch_size")], "workload_")
    problems: list[str] = []
    sgd_lr = None
    try:
        Workload.from_mapping(values)
    except RecipeError as error:
        problems += error.problems
    if args.sgd_lr is not None:
        try:
            sgd_lr = Workload.from_mapping({"lr": from_text(infos["lr"], args.sgd_lr)}).lr
        except RecipeError as error:
            problems += [problem.replace("lr is", "sgd_lr is", 1) for problem in error.problems]
    for name in ("image_size", "samples", "seq_len"):
        text = getattr(args, name)
        if text is not None and not (text.isdecimal() and int(text) > 0):
            problems.append(f"{name} is {text!r}; it must be a whole number of at least 1.")
    if problems:
        raise RecipeError(problems, subject="ladder")
    if preset is not None:
        ladder = preset.ladder(values, random_data=args.data == "random")
    else:
        batch_size = values.pop("batch_size", DEFAULT_BATCH_SIZE)
        settings = Workload.from_mapping(values)
        ladder = build_ladder(settings, device=device, bf16=bf16, sgd_lr=sgd_lr, batch_size=batch_size)
    if args.rungs is None:
        return ladder
    return ladder.choose(name.strip() for name in args.rungs.split(",") if name.strip())


def _entry(rung: Rung, out: Path, ladder: Ladder) -> dict[str, Any]:
    """The entry of a rung that was not trained."""
    return {
        "name": rung.name,
        "change": rung.change,
        "note": rung.note,
        "recipe": rung.recipe.to_mapping(),
        "workload": rung.workload.to_mapping(),
        "fidelity": dataclasses.asdict(rung.fidelity_against(ladder.first)),
        **dict.fromkeys(_TAKEN_OVER),
        "run_dir": str(out / "rungs" / rung.name),
        "error": None,
    }


def _climb(rung: Rung, args: argparse.Namespace, out: Path, ladder: Ladder, train: TrainCommand) -> dict[str, Any]:
    """Trains one rung and returns its entry."""
    entry = _entry(rung, out, ladder)
    document = train(rung_words(rung, args, out / "rungs" / rung.name))
    if args.estimate:
        predicted = {name: document[name] for name in PREDICTED}
        return {**entry, "run_dir": None, "predicted": predicted, "seconds": document["step_seconds"]}
    entry |= {name: document[name] for name in _TAKEN_OVER}
    settings = document["workload"]["settings"]
    traits = {name: settings[name] for name in ("batch_norm", "dropout", "half_weights")}
    entry["workload"] = {**entry["workload"], **traits}
    entry["fidelity"] = dataclasses.asdict(rung.fidelity_against(ladder.first, **traits))
    return entry


def _train_in_fresh_process(argv: Sequence[str], progress: LadderProgress) -> Mapping[str, Any]:
    from snugfit.measure.fresh import run_json

    return run_json(argv, on_line=progress.show)
