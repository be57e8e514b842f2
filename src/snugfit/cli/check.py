"""`snugfit check`: a gate for continuous integration. Exit code 0 when a model fits, 3 when it does not or has grown.

Examples:
  snugfit check models.py:build --image-size 224 --batch-size 32 --fits rtx-4090,a100-40gb
  snugfit check torchvision:vit_l_16 --batch-size 64 --precision bf16-mixed --fits rtx-4090 --budget 20GiB
  snugfit estimate models.py:build --image-size 224 --device rtx-4090 --json > memory.json
  snugfit check models.py:build --image-size 224 --against memory.json --tolerance 1%
  snugfit check --fits rtx-4090 --markdown train.py --batch-size 32      (your script; the words behind it are its own)
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from typing import TYPE_CHECKING, Annotated

from snugfit.cli import estimate, groups, options, output
from snugfit.errors import InputError
from snugfit.units import parse_bytes

if TYPE_CHECKING:
    from snugfit.devices import Device

DEFAULT_TOLERANCE = "0.5%"
_DOES_NOT_FIT = 3


class CheckOptions:
    """What must hold, and how it is said."""

    fits: Annotated[str, "CARD,CARD"]
    """cards that it must fit (snugfit devices), or cpu. Default: those of --against."""
    budget: Annotated[str, "SIZE"]
    """device memory that it may take on each of them, such as 8GiB. Default: all of the card."""
    against: groups.File
    """what `snugfit estimate --json` printed earlier: memory must not have grown since"""
    tolerance: Annotated[str, "PERCENT"]
    """by how much it may grow. Default: 0.5%."""
    markdown: bool = False
    """print Markdown, for a comment on a pull request"""
    whole: bool = False
    """simulate every block of the model, also where a few of them tell what all do: the same answer, and slower"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `snugfit check`."""
    options.add_shape_options(parser, or_file=True)
    options.add_options(parser, CheckOptions)
    output.add_json_option(parser)
    options.add_recipe_options(parser)
    options.add_workload_options(parser)


def run(args: argparse.Namespace) -> int:
    """Estimates, compares and prints; returns 0, or 3 where something does not fit or has grown."""
    from snugfit.workers.pool import shared_pool

    _check(args)
    shared_pool().start()  # it loads torch while the rest is imported and read here

    from snugfit.simulator.baseline import cards_in, compare, read_baseline

    tolerance = _share(args.tolerance or DEFAULT_TOLERANCE)
    baseline = None if args.against is None else read_baseline(args.against)
    wanted = args.fits if baseline is None or args.fits is not None else cards_in(baseline)
    cards = _cards(wanted, args.budget)
    found = estimate.estimated(args, cards)
    comparison = None if baseline is None else compare(baseline, found.to_mapping(), tolerance)
    fits = all(card.fits for card in found.devices)
    if args.json:
        plain = None if comparison is None else dataclasses.asdict(comparison)
        output.print_json({"fits": fits, "comparison": plain, "estimate": found.to_mapping()})
    else:
        from snugfit.report.gate_card import gate_markdown, gate_text

        output.print_text((gate_markdown if args.markdown else gate_text)(found, comparison, args.budget))
    return 0 if fits and (comparison is None or comparison.within) else _DOES_NOT_FIT


def _check(args: argparse.Namespace) -> None:
    """Raises for what contradicts itself."""
    behind = [word.partition("=")[0] for word in args.of_script]
    if args.fits is None and args.against is None and ("--fits" in behind or "--against" in behind):
        raise InputError(
            f"what stands behind {args.model} is the script's own. Put what must hold before it: snugfit check --fits CARD "
            f"{args.model} ..."
        )
    if args.fits is None and args.against is None:
        raise InputError("say what must hold: --fits CARD,CARD (snugfit devices), or --against baseline.json, or both.")
    if args.tolerance is not None and args.against is None:
        raise InputError("--tolerance is for --against: give what `snugfit estimate --json` printed earlier.")
    if args.json and args.markdown:
        raise InputError("--json and --markdown are two ways to print the same: give one of them.")
    if "," in (args.workload_gpus or ""):
        raise InputError(f"--gpus is {args.workload_gpus!r}; a check is of one number of GPUs.")


def _share(text: str) -> float:
    """Reads a percentage."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", text.strip())
    if match is None or float(match[1]) > 100:
        raise InputError(f"--tolerance is {text!r}; give a percentage from 0% to 100%, such as 2%.")
    return float(match[1]) / 100


def _cards(names: str, budget: str | None) -> tuple[Device, ...]:
    """The cards that are asked for, each with no more memory than the budget."""
    from snugfit.simulator.estimate import cards_of

    cards = cards_of(names)
    if budget is None:
        return cards
    most = parse_bytes(budget, what="budget")
    return tuple(dataclasses.replace(card, memory_bytes=min(card.memory_bytes or most, most)) for card in cards)
