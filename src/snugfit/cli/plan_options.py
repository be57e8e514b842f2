"""Options of a memory budget, for `snugfit plan` and `snugfit train --budget`; imports no torch."""

from __future__ import annotations

import argparse
from typing import Any

from snugfit.cli import options
from snugfit.errors import InputError, RecipeError
from snugfit.planner.constraints import Constraints, constraints_from
from snugfit.units import parse_bytes


def add_budget_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--budget` and what belongs to it.

    Args:
        parser: The subcommand's parser.
    """
    group = parser.add_argument_group("memory budget")
    add = group.add_argument
    add("--budget", metavar="SIZE", help="device memory for training, such as 8GiB. Default: all of the card.")
    add(
        "--allow",
        metavar="LEVELS",
        help="fidelity that may be given up to fit or to be faster: rounding, different, or both with a comma. "
        "Default: none, every update stays that of plain training.",
    )
    add("--pin", metavar="F=V", action="append", dest="pins", help="a recipe field that must have this value")
    add("--forbid", metavar="F", action="append", dest="forbidden", help="a recipe field that must stay plain")
    add("--host-budget", metavar="SIZE", help="host memory that may be used. Default: what is free.")


def constraints_of(args: argparse.Namespace) -> Constraints:
    """Returns what a plan must keep to; every recipe option that was typed, and every field of a recipe file, is a pin.

    Args:
        args: What the command line gave.

    Returns:
        The constraints.

    Raises:
        InputError: Something cannot be read.
        RecipeError: Listing every mistake in pins and bans.
    """
    if args.budget is not None:
        parse_bytes(args.budget, what="budget")
    pins: dict[str, Any] = {}
    if getattr(args, "recipe_file", None) is not None:
        pins.update(options.recipe_from(args).to_mapping(defaults=False))
    pins.update(options.given_recipe(args))
    problems = []
    for text in args.pins or ():
        name, sign, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not sign or not name or not value:
            raise InputError(f"--pin {text!r} is not understood; give FIELD=VALUE, for example --pin checkpoint=none.")
        if name in pins and str(pins[name]) != value:
            problems.append(f"{name} is pinned to {value} and given as {pins[name]}; give one of the two.")
        pins[name] = value
    if problems:
        raise RecipeError(problems, subject="pins and bans of the plan")
    forbidden = [
        name for text in args.forbidden or () for name in text.split(",") if name.strip() or not text.strip(" ,")
    ]
    return constraints_from(allow=args.allow, pin=pins, forbid=forbidden, host_budget=args.host_budget)
