"""`snugfit techniques`: what can be done to save memory, and the essay of each technique. Loads no torch.

Examples:
  snugfit techniques
  snugfit techniques checkpoint
  snugfit techniques qlora
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from typing import Any

from snugfit.cli import output
from snugfit.errors import InputError, nearest
from snugfit.report.console import table
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.declaration import Technique
from snugfit.yaml_files import read_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `snugfit techniques`."""
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="a technique, a recipe field, or what people call it (lora, amp): its essay",
    )
    output.add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the table, or the essay of one technique."""
    found = TECHNIQUES if args.name is None else _named(args.name)
    document = {"techniques": [_document(technique) for technique in found]}
    text = _table if args.name is None else lambda: "\n\n".join(map(_page, found))
    return output.print_either(document, text, as_json=args.json)


def _page(technique: Technique) -> str:
    """The essay under what it is about."""
    head = [f"{technique.name}  (fields: {', '.join(technique.fields)}; fidelity: {technique.level})"]
    if technique.aliases:
        head.append(f"also found as: {', '.join(technique.aliases)}")
    return "\n".join([*head, "", essay(technique)])


def _table() -> str:
    cells = [
        (row.name, ", ".join(row.fields), ", ".join(map(str, row.rows)), row.level, row.summary) for row in TECHNIQUES
    ]
    titles = ("technique", "recipe fields", "row", "fidelity", "what it saves")
    rows = table([titles, *cells], indent="", wrap_at=sys.maxsize)
    last = "row: number in the list of techniques of the guides. `snugfit techniques NAME` prints the essay."
    return "\n".join([*rows, "", last])


def essay(technique: Technique) -> str:
    """Returns the essay of a technique: the docstring of its package, which loads no torch."""
    text = inspect.getdoc(importlib.import_module(f"snugfit.techniques.{technique.name}"))
    assert text, f"{technique.name} has no docstring"
    return text


def _named(name: str) -> list[Technique]:
    """Returns the technique of that name; or those a recipe field belongs to; or those known by that word."""
    typed = re.sub(r"[\s_]+", "-", name.strip().lower())
    wanted = typed.replace("-", "_")
    for found in (
        [row for row in TECHNIQUES if row.name == wanted],
        [row for row in TECHNIQUES if wanted in row.fields],
        [row for row in TECHNIQUES if typed in row.aliases or typed.replace("-", "") in _squeezed(row)],
    ):
        if found:
            return found
    missing = not_here()
    if typed in missing:
        why, instead = missing[typed]
        raise InputError(f"technique {name!r}: {why}. The nearest that is here: `snugfit techniques {instead}`.")
    names = [row.name for row in TECHNIQUES]
    known = [*names, *(alias for row in TECHNIQUES for alias in row.aliases), *missing]
    near = nearest(typed, known)
    raise InputError(f"technique {name!r} is unknown; {near}{'Allowed' if near else 'allowed'}: {', '.join(names)}.")


def not_here() -> dict[str, tuple[str, str]]:
    """Returns what people look for in vain: its names -> why it is missing, and the closest technique."""
    rows = read_table("not_here.yaml").items()
    return {word: (row["why"], row["instead"]) for name, row in rows for word in (name, *row["also"])}


def _squeezed(technique: Technique) -> set[str]:
    return {alias.replace("-", "") for alias in technique.aliases}


def _document(technique: Technique) -> dict[str, Any]:
    return {
        **{name: getattr(technique, name) for name in ("name", "fields", "rows", "level", "summary")},
        "known_as": technique.aliases,
        "fidelity": technique.level,
        "essay": essay(technique),
    }
