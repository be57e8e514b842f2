"""Options of a memory budget, for `snugfit plan` and `snugfit train --budget`; imports no torch."""

from __future__ import annotations

import argparse
from typing import Annotated, Any

from snugfit.cli import options
from snugfit.errors import InputError, RecipeError
from snugfit.planner.constraints import Constraints, constraints_from
from snugfit.units import parse_bytes


class BudgetOptions:
    """What a plan must keep to."""

    budget: Annotated[str, "SIZE"]
    """device memory for training, such as 8GiB. Default: all of the card."""
    allow: Annotated[str, "LEVELS"]
    """fidelity that may be given up to fit or to be faster: rounding, different, or both with a comma. Default: none, every
    update stays that of plain training."""
    pin: Annotated[list, "F=V"]  # type: ignore[type-arg]
    """a recipe field that must have this value"""
    forbid: Annotated[list, "F"]  # type: ignore[type-arg]
    """a recipe field that must stay plain"""
    host_budget: Annotated[str, "SIZE"]
    """host memory that may be used. Default: what is free."""


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
    given: dict[str, Any] = {}
    if getattr(args, "recipe_file", None) is not None:
        given.update(options.recipe_from(args).to_mapping(defaults=False))
    given.update(options.given_recipe(args))
    return constraints_from(
        allow=args.allow, pin=pins_of(args), forbid=bans_of(args), host_budget=args.host_budget, given=given
    )


def pins_of(args: argparse.Namespace) -> dict[str, str]:
    """Returns what `--pin` gave: field -> text.

    Args:
        args: What the command line gave.

    Raises:
        InputError: One has no value.
    """
    pins: dict[str, str] = {}
    for text in args.pin or ():
        name, sign, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not sign or not name or not value:
            raise InputError(f"--pin {text!r} is not understood; give FIELD=VALUE, for example --pin checkpoint=none.")
        if pins.setdefault(name, value) != value:
            problem = f"{name} is pinned to {value} and to {pins[name]}; give one of the two."
            raise RecipeError([problem], subject="pins and bans of the plan")
    return pins


def bans_of(args: argparse.Namespace) -> list[str]:
    """Returns the fields that `--forbid` gave.

    Args:
        args: What the command line gave.
    """
    return [name for text in args.forbid or () for name in text.split(",") if name.strip() or not text.strip(" ,")]
