"""`snugfit plan`: the fastest recipe that fits a memory budget, found without a GPU.

Examples:
  snugfit plan torchvision:vit_l_16 --batch-size 64 --precision bf16-mixed --budget 8GiB --device rtx-4090
  snugfit plan timm:convnext_base --batch-size 128 --budget 12GiB --device rtx-3090 --allow rounding -o recipe.yaml
  snugfit plan hf:llama/config.json --batch-size 8 --budget 24GiB --device l4 --forbid offload_activations
  snugfit plan torchvision:vit_b_16 --budget 8GiB --device rtx-3080 --maximize batch-size
  snugfit plan hf:llama/config.json --batch-size 8 --device rtx-4090 --gpus 8 --host-budget 512GiB
  snugfit plan torchvision:vit_h_14 --batch-size 64 --device rtx-3090 --gpus auto
  snugfit plan --from plan.json --budget 10GiB      (plan.json: what --json printed, or -o plan.json wrote)
  snugfit plan --budget 16GiB --device rtx-4090 train.py --batch-size 32      (your script as it is: lines to paste into it)
  snugfit plan --device rtx-4090 --gpus 4 train_ddp.py                        (as torchrun starts it; lines for each process)

Any recipe option given here is a pin: --precision bf16-mixed plans for that number format. The budget is that of each GPU;
--gpus auto (or --minimize gpus) finds the fewest that do it, and says how long a step takes on 1, 2, 4, 8, ... of them.
A plan keeps what its search has found for all budgets: --from answers another one at once, of what was simulated then.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from snugfit.cli import groups, is_script, options, output
from snugfit.errors import InputError
from snugfit.units import parse_bytes

if TYPE_CHECKING:
    from snugfit.planner.plan_result import Plan
    from snugfit.planner.script_plan_result import ScriptPlan


class PlanOptions:
    """What is planned, and how it is shown."""

    device: groups.Name
    """a card (snugfit devices), local (this machine's GPU) or cpu. Default: this machine's GPU, or else cpu."""
    maximize: Annotated[str, "WHAT"]
    """batch-size or seq-len: plan for the largest that fits (the batch in one piece)"""
    minimize: Annotated[str, "WHAT"]
    """gpus: plan for the fewest on which something fits, as --gpus auto does"""
    figure: groups.File
    """also draw the frontier of memory and time: FILE.png or FILE.svg"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `snugfit plan`."""
    options.add_shape_options(parser, optional=True, or_script=True)
    parser.add_argument(
        "--from",
        dest="earlier",
        metavar="FILE",
        type=output.some_path,
        help="in place of a model: the JSON of an earlier plan, which answers another --budget of the same work at once",
    )
    options.add_options(parser, PlanOptions, "device", "maximize", "minimize")
    told = "also write the recipe, as YAML; FILE.json: the whole plan, as --json prints it; of a script the lines, as a diff"
    parser.add_argument("-o", "--output", metavar="FILE", type=output.some_path, help=told)
    told = "of a script: what the lines to paste are made of, snugfit or torch. Default: snugfit."
    parser.add_argument("--as", dest="style", metavar="WORD", help=told)
    options.add_options(parser, PlanOptions, "figure")
    output.add_json_option(parser)
    options.add_options(parser.add_argument_group("memory budget"), groups.BudgetOptions)
    options.add_recipe_options(parser)
    options.add_workload_options(parser)


def run(args: argparse.Namespace) -> int:
    """Plans, and prints the result."""
    if args.earlier is not None:
        return _from_earlier(args)
    if args.model is None:
        raise InputError("the following arguments are required: MODEL (or --from FILE); see `snugfit plan --help`.")
    if is_script(args.model):
        found = planned_script(args)
        output.write_file(args.output, found.write_diff)
        output.write_file(args.figure, found.plan.draw)
        return output.print_result(found, as_json=args.json)
    if args.style is not None:
        raise InputError(f"--as is for a script, and {args.model} is a model by name. Leave it out.")
    from snugfit.planner.maximize import MAXIMIZED
    from snugfit.planner.plan import plan_named

    fewest = (args.workload_gpus or "").strip().lower() == "auto"
    if args.minimize is not None:
        if args.minimize != "gpus":
            raise InputError(f"--minimize is {args.minimize!r}; give gpus. For the largest batch there is --maximize.")
        if args.workload_gpus is not None and not fewest:
            raise InputError(f"--minimize gpus finds their number; leave --gpus {args.workload_gpus} out.")
        fewest = True
    if args.maximize is not None and args.maximize not in MAXIMIZED:
        raise InputError(f"--maximize is {args.maximize!r}; give {' or '.join(MAXIMIZED)}.")
    output.check_files(args, output=(), figure=(".png", ".svg"))
    constraints = options.constraints_of(args)
    args.workload_gpus = None if fewest else args.workload_gpus
    workload = options.workload_from(args)
    plan = plan_named(
        options.named_model(args),
        workload=workload,
        budget=args.budget,
        device=args.device,
        constraints=constraints,
        maximize=args.maximize,
        fewest_gpus=fewest,
    )
    output.write_file(args.output, lambda path: _write(path, plan))
    output.write_file(args.figure, plan.draw)
    return output.print_result(plan, as_json=args.json)


def _write(path: Path, plan: Plan) -> None:
    if path.suffix.lower() == ".json":
        path.write_text(plan.to_json() + "\n", encoding="utf-8")
    else:
        plan.recipe.to_yaml(path)


def _from_earlier(args: argparse.Namespace) -> int:
    """Answers a budget from an earlier plan; nothing is simulated."""
    from snugfit.planner.budgets import budgets_in

    asked = argparse.ArgumentParser()
    add_arguments(asked)
    may = {"earlier", "budget", "output", "json"}
    for name, value in vars(args).items():
        if name not in (*may, "run", "of_script", "ours_behind") and value != asked.get_default(name):
            word = next((a.option_strings[-1] for a in asked._actions if a.dest == name and a.option_strings), "MODEL")
            raise InputError(
                f"{word} is for a new plan, and --from answers with what an earlier one has found. Leave one of them out; "
                "beside --from there are --budget, -o and --json."
            )
    if args.budget is None:
        raise InputError("--from answers another budget of an earlier plan: give --budget, for example --budget 10GiB.")
    parse_bytes(args.budget, what="budget")
    output.check_files(args, output=())
    answer = budgets_in(args.earlier).at(args.budget)
    output.write_file(args.output, answer.recipe.to_yaml)
    return output.print_result(answer, as_json=args.json)


def planned_script(args: argparse.Namespace) -> ScriptPlan:
    """Returns the plan of the script that was typed."""
    from snugfit.planner.script_plan import plan_script

    if (args.workload_gpus or "").strip().lower() == "auto":
        raise InputError(f"--gpus auto is for a model by name; {args.model} is a script: give a number.")
    given = options.given_settings(args)
    processes = options.take_processes(given)
    options.check_script(args, given, "maximize", "minimize", "recipe_file")
    if args.budget is None and any(word.partition("=")[0] == "--budget" for word in args.of_script):
        raise InputError(
            f"--budget stands behind {args.model}, and what stands there is the script's own. Put it before: "
            f"snugfit plan --budget SIZE {args.model} ..."
        )
    output.check_files(args, output=(), figure=(".png", ".svg"))
    return plan_script(
        args.model,
        args.of_script,
        budget=args.budget,
        device=args.device,
        constraints=options.constraints_of(args),
        style=args.style or "snugfit",
        assume=args.assume,
        **processes,
    )
