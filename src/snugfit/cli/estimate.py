"""`snugfit estimate`: predicts the memory and time of a training run, without a GPU and without weights.

Examples:
  snugfit estimate torchvision:vit_l_16 --batch-size 64 --device rtx-4090
  snugfit estimate timm:convnext_base --batch-size 128 --precision bf16-mixed --checkpoint all --device all
  snugfit estimate hf:llama/config.json --batch-size 4 --seq-len 2048 --precision bf16-true --device h100-80gb
  snugfit estimate models.py:build --image-size 64 --recipe recipe.yaml --timeline timeline.html
  snugfit estimate torchvision:resnet50 --price rtx-4090=0.35 --price h100-80gb=2.5 --samples 1281167
  snugfit estimate torchvision:vit_h_14 --batch-size 32 --shard full --device all --gpus 1,2,4,8
  snugfit estimate --device rtx-4090 train.py --batch-size 32      (your script as it is; the words behind it are its own)
  snugfit estimate --device rtx-4090 --gpus 4 train_ddp.py         (as torchrun starts it; what its first process takes)
  snugfit estimate --from axolotl.yaml --device rtx-4090 --gpus 2
  snugfit estimate hf:llama/config.json --from training_args.json --seq-len 2048
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from snugfit.cli import groups, is_script, options, output
from snugfit.errors import InputError, warn
from snugfit.fields import field_infos
from snugfit.run import Run
from snugfit.workload import Workload

if TYPE_CHECKING:
    from snugfit.simulator.estimate import DeviceArgument
    from snugfit.simulator.prediction import Estimate


class EstimateOptions:
    """What is estimated, and how it is shown."""

    device: groups.Name
    """a card (snugfit devices), several with commas, cpu, local (this machine's GPU) or all. Default: all."""
    price: Annotated[list, "CARD=PRICE"]  # type: ignore[type-arg]
    """what an hour of a card costs, in any currency; may be repeated. Says what a step costs, and which card that fits is
    the cheapest."""
    samples: groups.Count
    """samples of an epoch: with --price also what an epoch costs"""
    timeline: groups.File
    """also draw memory over the run: FILE.html or FILE.png"""
    snapshot: groups.File
    """also write a memory snapshot for PyTorch's viewer"""
    whole: bool = False
    """simulate every block of the model, also where a few of them tell what all do: the same answer, and slower"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `snugfit estimate`."""
    options.add_shape_options(parser, or_file=True, or_script=True)
    options.add_options(parser, EstimateOptions)
    output.add_json_option(parser)
    options.add_recipe_options(parser)
    options.add_workload_options(parser)


def run(args: argparse.Namespace) -> int:
    """Estimates and prints the result; returns 0 whether it fits or not."""
    from snugfit.workers.pool import shared_pool

    output.check_files(args, timeline=(".html", ".png"), snapshot=())
    shared_pool().start()  # it loads torch while the rest is imported and read here

    from snugfit.simulator.costs import check_priced, read_prices
    from snugfit.simulator.estimate import cards_of

    prices = read_prices(args.price or ())
    check_priced(prices, [card.name for card in cards_of(args.device)])
    if args.samples is not None and not prices:
        warn("--samples says what an epoch costs, and there is no --price; it has no effect.")
    estimate = estimated(args, args.device)
    output.write_file(args.timeline, lambda path: _draw(path, estimate))
    output.write_file(args.snapshot, estimate.write_snapshot)
    if prices:
        estimate = estimate.priced(prices, samples=args.samples)
    more = {} if args.imported is None else {"imported": args.imported.to_mapping()}
    return output.print_either({**estimate.to_mapping(), **more}, lambda: str(estimate), as_json=args.json)


def estimated(args: argparse.Namespace, device: DeviceArgument) -> Estimate:
    """Returns the estimate of the model or script that was typed, on a device or several."""
    from snugfit.simulator.by_gpus import estimate_by_gpus, numbers_of_gpus
    from snugfit.simulator.estimate import estimate_named

    _take_file(args)
    numbers: tuple[int, ...] = ()
    if "," in (args.workload_gpus or ""):
        numbers, args.workload_gpus = numbers_of_gpus(args.workload_gpus), None
    if is_script(args.model):
        return _of_script(args, device, numbers)
    asked: dict[str, Any] = {"device": device, "whole": args.whole}
    if not numbers:
        recipe, workload = options.settings_from(args)
        return estimate_named(options.named_model(args), recipe=recipe, workload=workload, **asked)
    recipe, workload, named = options.recipe_from(args), options.workload_from(args), options.named_model(args)

    def on(gpus: int) -> Estimate:
        run = Run(recipe, workload.replace(gpus=gpus))
        return estimate_named(named, recipe=recipe, workload=run.workload, **asked)

    return estimate_by_gpus(on, numbers, workload.nodes)


def _of_script(args: argparse.Namespace, device: DeviceArgument, numbers: tuple[int, ...]) -> Estimate:
    from snugfit.simulator.by_gpus import estimate_by_gpus
    from snugfit.simulator.own_script import estimate_script

    given = options.given_options(args)
    processes = options.take_processes(given)
    options.check_script(args, given, "from_file", "recipe_file")
    nodes = processes.get("nodes", 1)

    def on(gpus: int | None) -> Estimate:
        return estimate_script(args.model, args.of_script, device=device, assume=args.assume, gpus=gpus, nodes=nodes)

    return estimate_by_gpus(on, numbers, nodes) if numbers else on(processes.get("gpus"))


def _take_file(args: argparse.Namespace) -> None:
    """Reads another tool's configuration into the options that were not typed, and accounts for its fields on stderr."""
    args.imported = None
    if args.from_file is None and args.model is not None and args.model.endswith(_FILES) and ":" not in args.model:
        args.from_file, args.model = Path(args.model), None
    if args.from_file is not None:
        from snugfit.interop.imports import import_config

        typed = options.given_options(args)
        found = args.imported = import_config(args.from_file, ranks=typed.get("gpus", 1) * typed.get("nodes", 1))
        for line in found.account():
            logging.getLogger("snugfit").info("%s: %s", args.from_file, line)
        for name, value in found.settings.items():
            if name not in typed:
                setattr(args, ("workload_" if name in field_infos(Workload) else "recipe_") + name, value)
        args.model, args.seq_len = args.model or found.model, args.seq_len or found.seq_len
        args.task = args.task or found.task
    if args.model is None:
        raise InputError(
            "the following arguments are required: MODEL (or --from FILE that names one); see `snugfit estimate --help`."
        )


_FILES = (".yaml", ".yml", ".json")


def _draw(path: Path, estimate: Estimate) -> None:
    from snugfit.report.estimate_card import estimate_drawing
    from snugfit.report.timeline_figure import write_timeline

    write_timeline(path, lambda: estimate_drawing(estimate), estimate.to_mapping)
