"""`snugfit train`: trains a model on data by a recipe, measures it, and leaves a run directory.

Examples:
  snugfit train timm:vit_tiny_patch16_224 --data digits --model-arg img_size=16 --model-arg patch_size=4
  snugfit train torchvision:resnet18 --data cifar10:data --download --epochs 5 --precision bf16-mixed
  snugfit train models.py:build --data imagefolder:photos --weights model.safetensors --recipe recipe.yaml
  snugfit train hf:bert/config.json --task text-classification --data topics --batch-size 16 --max-steps 50
  snugfit train hf:llama --task causal-lm --data jsonl:chats.jsonl --prompt-column question --seq-len 512 --lr 1e-5
  snugfit train torchvision:resnet18 --data imagefolder:photos --batch-size 64 --budget 6GiB --allow rounding
  snugfit train --run-dir runs/resnet18-cifar10-data --resume
"""

from __future__ import annotations

import argparse
import inspect
import sys
from typing import Annotated

from snugfit.cli import groups, options, output
from snugfit.errors import TrainingStopped


class RunOptions:
    """Where results go."""

    run_dir: groups.Folder
    """where results go. Default: runs/MODEL-DATA, numbered."""
    resume: bool = False
    """go on with the run in --run-dir, exactly where it stopped; data with other samples or classes is refused, and
    a model's file that has changed is warned of"""
    overwrite: bool = False
    """replace the run in --run-dir"""
    keep_checkpoints: groups.Count = 2
    """newest checkpoints that stay. Default: 2."""
    exact_rss: bool = False
    """start the process with settings under which its resident memory can be read to the byte; small tensors are
    slower then. Without it rss_bytes is what the system counts, memory kept free for later included."""
    predict: bool = False
    """also predict what the recipe takes, before training; --budget does"""
    tune: bool = True
    """with --budget, the first steps go by recipes that promise about as much, in turn, and the others by the fastest"""
    log_to: groups.Names
    """loggers that get the metrics too, and predicted and measured memory: tensorboard, trackio, wandb or mlflow, several
    with commas"""


class MachineOptions:
    """Where the processes of several machines meet."""

    rdzv: Annotated[str, "HOST:PORT"]
    """with --nodes: where the machines meet, the same on all of them: the name of one, and a port that is free there"""
    rdzv_timeout: Annotated[int, "SECONDS"] = 300
    """how long processes wait for each other at the start. Default: 300."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `snugfit train`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="torchvision:NAME, timm:NAME, hf:DIR (with its weights), hf:DIR/config.json (random values) or "
        "path/file.py:function (with --resume: the run's)",
    )
    options.add_options(parser, groups.DataOptions)
    options.add_options(parser.add_argument_group("text"), groups.ReadingOptions)
    options.add_options(parser.add_argument_group("run directory"), RunOptions)
    options.add_options(parser.add_argument_group("several GPUs (--gpus, --nodes)"), MachineOptions)
    output.add_json_option(parser)
    options.add_options(parser.add_argument_group("memory budget"), groups.BudgetOptions)
    options.add_recipe_options(parser)
    options.add_workload_options(parser)


def run(args: argparse.Namespace) -> int:
    """Trains, and prints the result.

    Returns 0 when the run is finished; 128 and the signal's number (130 for Ctrl-C) when it was stopped after saving.
    """
    from snugfit.measure.fresh import ensure_tuned_process
    from snugfit.runs.others import ended_by
    from snugfit.runs.train import train

    same = vars(args).keys() & inspect.signature(train).parameters.keys()
    given = {name: getattr(args, name) for name in same} | options.given_options(args)
    if args.exact_rss:
        ensure_tuned_process()
    try:
        result = train(
            **{**given, "pin": options.pins_of(args), "forbid": options.bans_of(args)}, recipe=args.recipe_file
        )
    except (Exception, TrainingStopped) as error:
        code = ended_by(error)
        if code is not None:
            return code
        if not isinstance(error, TrainingStopped):
            raise
        print(f"snugfit: {error}", file=sys.stderr)
        return 128 + error.signal
    if result.first:
        output.print_result(result, as_json=args.json)
    return 0
