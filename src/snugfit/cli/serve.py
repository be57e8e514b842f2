"""`snugfit serve`: the page of `snugfit report`, live: change model, batch, card or budget, and see what that makes.

Examples:
  snugfit serve torchvision:vit_l_16 --batch-size 64 --device rtx-4090
  snugfit serve models.py:build --image-size 64 --device rtx-3060-12gb --budget 8GiB
  snugfit serve

It prints an address to open in a browser on this machine, and runs until Ctrl-C. Only this machine reaches it, and only with
the token in the address. What is typed into the page may be a model of torchvision or timm by name, or the MODEL given here.
"""

from __future__ import annotations

import argparse
import copy
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.cli import groups, is_script, options, output, parse
from snugfit.devices import DEVICES, device_named
from snugfit.errors import InputError, did_you_mean
from snugfit.fields import field_infos
from snugfit.recipe import Recipe
from snugfit.units import parse_bytes

if TYPE_CHECKING:
    from snugfit.workers.pool import Pool

_FIELDS = {
    "model": "model",
    "batch_size": "workload_batch_size",
    "image_size": "image_size",
    "seq_len": "seq_len",
    "precision": "recipe_precision",
    "device": "device",
    "gpus": "workload_gpus",
    "budget": "budget",
}
"""What the page may ask for -> where a typed option of that name stands."""
_BY_NAME = re.compile(r"(torchvision|timm):[\w.]+")
"""Models that a page may name: none is a file."""
_DEFAULT_DEVICE = "rtx-4090"


class ServeOptions:
    """Where the page is."""

    device: groups.Name
    """the card that the page begins with (snugfit devices). Default: rtx-4090."""
    port: groups.Count
    """port of 127.0.0.1. Default: one that is free."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `snugfit serve`."""
    options.add_shape_options(parser, optional=True)
    options.add_options(parser, ServeOptions)
    output.add_json_option(parser)
    options.add_options(parser.add_argument_group("memory budget"), groups.BudgetOptions)
    options.add_recipe_options(parser)
    options.add_workload_options(parser)


def run(args: argparse.Namespace) -> int:
    """Serves until Ctrl-C."""
    from snugfit.report.page import live_page
    from snugfit.serving.desk import Desk
    from snugfit.serving.server import Server
    from snugfit.simulator.request import check_named

    if args.model is not None and is_script(args.model):
        raise InputError(f"{args.model} is a script, and the page changes models by name. Give {args.model}:FUNCTION.")
    args.device = _named(args.device or _DEFAULT_DEVICE)
    options.constraints_of(args)
    _check(_asked_first(args), args)
    if args.budget is not None:
        parse_bytes(args.budget, what="budget")
    logging.getLogger("snugfit").setLevel(logging.WARNING)  # a line for each request is the log
    if args.port is not None and args.port > 65535:
        raise InputError(f"--port is {args.port}; give a port from 1 to 65535, or leave it out.")
    with closing(Desk(lambda asked, warm, search: _answers(asked, args, warm, search))) as desk:
        if args.model is not None:
            desk.warm_up(check_named, options.named_model(args), options.settings_from(args)[1].batch_size)
        try:
            server = Server(live_page(_form(args)), desk, args.port or 0)
        except OSError as error:
            raise InputError(
                f"--port {args.port} cannot be used: {error.strerror or error}. Give another, or none."
            ) from error
        output.print_either({"url": server.url}, lambda: f"{server.url}  (Ctrl-C ends it)", as_json=args.json)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            return 0
        finally:
            server.server_close()
    return 0


def _named(device: str) -> str:
    """What the page calls the card that was typed: its full name, or a file's path as it was given."""
    card = device_named(device)
    return device if Path(device).suffix else card.name


def _asked_first(args: argparse.Namespace) -> dict[str, str]:
    return {name: str(getattr(args, place) or "") for name, place in _FIELDS.items()}


def _form(args: argparse.Namespace) -> dict[str, Any]:
    """What the page's form has."""
    first = _asked_first(args)
    cards = ["cpu", *sorted({card.name for card in DEVICES if card.memory_bytes is not None} | {args.device} - {"cpu"})]
    more: dict[str, dict[str, Any]] = {
        "model": {"wide": True, "none": "torchvision:resnet50"},
        "batch_size": {"none": "64"},
        "image_size": {"none": "the model's own"},
        "seq_len": {"none": "512"},
        "precision": {"none": "(not said)", "choices": ["", *field_infos(Recipe)["precision"].choices]},
        "device": {"choices": cards},
        "gpus": {"none": "1"},
        "budget": {"none": "all of the card"},
    }
    return {
        "fields": [
            {"name": name, "label": name.replace("_", " "), "value": first[name], **more[name]} for name in _FIELDS
        ]
    }


def _check(asked: Mapping[str, str], args: argparse.Namespace) -> None:
    """Refuses what a page may not ask for."""
    if unknown := sorted(asked.keys() - _FIELDS.keys()):
        raise InputError(f"the page asks for {unknown[0]!r}, which it may not.")
    model, device = asked.get("model", ""), asked.get("device", "")
    if model and model != args.model and not _BY_NAME.fullmatch(model):
        given = f", or {args.model}, which was given to snugfit serve" if args.model else ""
        raise InputError(
            f"model is {model!r}; give torchvision:NAME or timm:NAME{given}. Files and configs are named where the server "
            "is started: snugfit serve MODEL."
        )
    cards = {card.name for card in DEVICES}
    if device and device not in {*cards, args.device}:
        raise InputError(f"device is {device!r}; {did_you_mean(device, sorted(cards))}")


def _typed(asked: Mapping[str, str], given: argparse.Namespace) -> argparse.Namespace:
    """Returns the options as if what the page asks for had been typed."""
    if not asked.get("model"):
        raise InputError("model must be given, such as torchvision:resnet50.")
    words = [f"--{name.replace('_', '-')}={text}" for name, text in asked.items() if text and name != "model"]
    typed, args = parse(["serve", *words]), copy.copy(given)
    typed.model = asked["model"]
    if typed.model != given.model:  # what was typed for the model that it began with is none of another's business
        args.model_arg, args.task = typed.model_arg, typed.task
    for place in _FIELDS.values():
        setattr(args, place, getattr(typed, place))
    return args


def _answers(
    asked: Mapping[str, str], given: argparse.Namespace, warm: Pool, search: Pool
) -> Iterator[Mapping[str, Any]]:
    """Yields the page of the estimate, and when it is found that of the plan."""
    from snugfit.planner.plan import plan_named
    from snugfit.report.page import page_data, shown
    from snugfit.simulator.estimate import estimate_named

    _check(asked, given)
    args = _typed(asked, given)
    device = args.device or _DEFAULT_DEVICE
    yield {"doing": "Simulating a step ..."}
    recipe, workload = options.settings_from(args)
    named, constraints = options.named_model(args), options.constraints_of(args)
    found = estimate_named(named, recipe=recipe, workload=workload, device=device, pool=warm)
    yield {"page": page_data([shown(found.to_mapping(), name="")]), "doing": "Looking for a plan ..."}
    plan = plan_named(named, workload=workload, budget=args.budget, device=device, constraints=constraints, pool=search)
    yield {
        "page": page_data([shown(plan.to_mapping(), name="", budgets=plan.budgets)]),
        "doing": f"Planned, of {plan.simulated} recipes that were simulated.",
    }
