"""`snugfit plan`: the fastest recipe that fits a memory budget, found without a GPU."""

from __future__ import annotations

import argparse
import sys

from snugfit.cli import options, output, plan_options
from snugfit.errors import InputError

EPILOG = """\
examples:
  snugfit plan torchvision:vit_l_16 --batch-size 64 --precision bf16-mixed --budget 8GiB --device rtx-4090
  snugfit plan timm:convnext_base --batch-size 128 --budget 12GiB --device rtx-3090 --allow rounding -o recipe.yaml
  snugfit plan hf:llama/config.json --batch-size 8 --budget 24GiB --device l4 --forbid offload_activations
  snugfit plan torchvision:vit_b_16 --budget 8GiB --device rtx-3080 --maximize batch-size

Any recipe option given here is a pin: --precision bf16-mixed plans for that number format.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `snugfit plan`.

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
        help="a card (snugfit devices), local (this machine's GPU) or cpu. Default: this machine's GPU, or else cpu.",
    )
    add(
        "--maximize",
        metavar="WHAT",
        help="batch-size or seq-len: plan for the largest that fits (the batch in one piece)",
    )
    add("-o", "--output", metavar="FILE", type=output.some_path, help="also write the recipe, as YAML")
    add(
        "--figure",
        metavar="FILE",
        type=output.some_path,
        help="also draw the frontier of memory and time: FILE.png or FILE.svg",
    )
    options.add_assume_option(parser)
    output.add_json_option(parser)
    plan_options.add_budget_options(parser)
    options.add_recipe_options(parser)
    options.add_workload_options(parser)


def run(args: argparse.Namespace) -> int:
    """Plans, and prints the result.

    Args:
        args: What the command line gave.

    Returns:
        0 when a plan was found.

    Raises:
        InputError: Something that was given cannot be used.
        DoesNotFitError: Nothing fits the budget.
        CannotSimulateError: Something in the model needs values.
    """
    from snugfit.fake_device.assumptions import assumptions_from
    from snugfit.planner.plan import plan_named
    from snugfit.simulator.request import NamedModel

    _check(args)
    constraints = plan_options.constraints_of(args)
    workload = options.workload_from(args)
    named = NamedModel(
        spec=args.model,
        model_args=tuple(args.model_args or ()),
        task=args.task,
        image_size=args.image_size,
        seq_len=args.seq_len,
        frames=args.frames,
        assume=assumptions_from(args.assume),
    )
    plan = plan_named(
        named,
        workload=workload,
        budget=args.budget,
        device=args.device,
        constraints=constraints,
        maximize=args.maximize,
    )
    if args.output is not None:
        plan.recipe.to_yaml(args.output)
        print(f"snugfit: wrote {args.output}", file=sys.stderr)
    if args.figure is not None:
        try:
            plan.draw(args.figure)
        except OSError as error:
            raise InputError(f"{str(args.figure)!r} cannot be written: {error.strerror}.") from error
        print(f"snugfit: wrote {args.figure}", file=sys.stderr)
    if args.json:
        output.print_json(plan.to_mapping())
    else:
        from snugfit.report.console import plain_for

        print(plain_for(plan.explain(), sys.stdout.encoding))
    return 0


def _check(args: argparse.Namespace) -> None:
    from snugfit.planner.maximize import MAXIMIZED

    if args.maximize is not None and args.maximize not in MAXIMIZED:
        raise InputError(f"--maximize is {args.maximize!r}; give {' or '.join(MAXIMIZED)}.")
    if args.figure is not None and args.figure.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"--figure {str(args.figure)!r}: the file's ending says the format: .png or .svg.")
    output.check_writable(output=args.output, figure=args.figure)
