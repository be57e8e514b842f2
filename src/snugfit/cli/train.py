"""`snugfit train`: trains a model on data by a recipe, measures it, and leaves a run directory."""

from __future__ import annotations

import argparse
import inspect
import sys

from snugfit.cli import options, output, plan_options
from snugfit.errors import TrainingStopped

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
    output.add_device_option(parser)
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
    for name, what in (
        ("text", "the texts, or of what follows a prompt"),
        ("label", "the labels"),
        ("prompt", "prompts, which are read and not learned"),
    ):
        add(f"--{name}-column", metavar="NAME", help=f"column of {what}. Default: by its name.")
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
    add(
        "--exact-rss",
        action="store_true",
        help="start the process with settings under which its resident memory can be read to the byte; small tensors are "
        "slower then. Without it rss_bytes is what the system counts, memory kept free for later included.",
    )
    add("--predict", action="store_true", help="also predict what the recipe takes, before training; --budget does")
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
    from snugfit.runs.train import train

    if args.exact_rss:
        ensure_tuned_process()
    same = vars(args).keys() & inspect.signature(train).parameters.keys() - {"model", "data"}
    try:
        result = train(
            args.model,
            args.data,
            recipe=args.recipe_file,
            pin=plan_options.pins_of(args),
            forbid=plan_options.bans_of(args),
            model_arg=args.model_args,
            **{name: getattr(args, name) for name in same},
            **options.given_options(args),
        )
    except TrainingStopped as stopped:
        print(f"snugfit: {stopped}", file=sys.stderr)
        return 128 + stopped.signal
    output.print_result(result, as_json=args.json)
    return 0
