"""`snugfit estimate`: predicts the memory and time of a training run, without a GPU and without weights."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from snugfit.cli import options, output
from snugfit.errors import InputError

if TYPE_CHECKING:
    from snugfit.simulator.prediction import Estimate

EPILOG = """\
examples:
  snugfit estimate torchvision:vit_l_16 --batch-size 64 --device rtx-4090
  snugfit estimate timm:convnext_base --batch-size 128 --precision bf16-mixed --checkpoint all --device all
  snugfit estimate hf:llama/config.json --batch-size 4 --seq-len 2048 --precision bf16-true --device h100-80gb
  snugfit estimate models.py:build --image-size 64 --recipe recipe.yaml --timeline timeline.html
"""

_ENDINGS = (".html", ".png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `snugfit estimate`.

    Args:
        parser: The subcommand's parser.
    """
    parser.epilog = EPILOG
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        help="torchvision:NAME, timm:NAME, hf:DIR_OR_CONFIG_JSON, hf:KIND or path/file.py:function",
    )
    add("--model-arg", metavar="K=V", action="append", dest="model_args", help="argument of the model's constructor")
    add(
        "--task",
        metavar="TASK",
        help=options.TASKS_HELP,
    )
    add("--image-size", metavar="N", type=output.whole_number, help="side of the images. Default: the model's own.")
    add(
        "--frames",
        metavar="N",
        type=output.whole_number,
        help="frames of a clip, for models of video. Default: the model's own.",
    )
    add(
        "--seq-len",
        metavar="N",
        type=output.whole_number,
        help="tokens of a sequence. Default: 512, or fewer where the model takes fewer.",
    )
    add(
        "--device",
        metavar="NAME",
        help="a card (snugfit devices), cpu, local (this machine's GPU) or all. Default: all.",
    )
    add(
        "--timeline", metavar="FILE", type=output.some_path, help="also draw memory over the run: FILE.html or FILE.png"
    )
    add("--snapshot", metavar="FILE", type=output.some_path, help="also write a memory snapshot for PyTorch's viewer")
    options.add_assume_option(parser)
    output.add_json_option(parser)
    options.add_recipe_options(parser)
    options.add_workload_options(parser)


def run(args: argparse.Namespace) -> int:
    """Estimates, and prints the result.

    Args:
        args: What the command line gave.

    Returns:
        0, whether it fits or not.

    Raises:
        InputError: Something that was given cannot be used.
        CannotSimulateError: Something in the model needs values.
    """
    from snugfit.fake_device.assumptions import assumptions_from
    from snugfit.simulator.estimate import cards_of, estimate_named
    from snugfit.simulator.request import NamedModel

    _check(args)
    cards_of(args.device)
    recipe, workload = options.settings_from(args)
    named = NamedModel(
        spec=args.model,
        model_args=tuple(args.model_args or ()),
        task=args.task,
        image_size=args.image_size,
        seq_len=args.seq_len,
        frames=args.frames,
        assume=assumptions_from(args.assume),
    )
    estimate = estimate_named(named, recipe=recipe, workload=workload, device=args.device)
    if args.timeline is not None:
        _write(args.timeline, lambda: _draw(args.timeline, estimate))
    if args.snapshot is not None:
        _write(args.snapshot, lambda: estimate.write_snapshot(args.snapshot))
    if args.json:
        output.print_json(estimate.to_mapping())
    else:
        from snugfit.report.console import plain_for

        print(plain_for(estimate.card(), sys.stdout.encoding))
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.timeline is not None and args.timeline.suffix.lower() not in _ENDINGS:
        raise InputError(
            f"--timeline {str(args.timeline)!r}: the file's ending says the format: {' or '.join(_ENDINGS)}."
        )
    output.check_writable(timeline=args.timeline, snapshot=args.snapshot)


def _draw(path: Path, estimate: Estimate) -> None:
    from snugfit.report.estimate_timeline import estimate_drawing
    from snugfit.report.timeline_figure import write_timeline

    write_timeline(estimate_drawing(estimate), path)


def _write(path: Path, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be written: {error.strerror}.") from error
    print(f"snugfit: wrote {path}", file=sys.stderr)
