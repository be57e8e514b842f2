"""`snugfit techniques`: what can be done to save memory, and the essay of each technique. Loads no torch."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

from snugfit.cli import output
from snugfit.errors import InputError, did_you_mean
from snugfit.report.console import Column, Table
from snugfit.techniques import TECHNIQUES, Technique

EPILOG = """\
examples:
  snugfit techniques
  snugfit techniques checkpoint
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `snugfit techniques`.

    Args:
        parser: The subcommand's parser.
    """
    parser.epilog = EPILOG
    parser.add_argument("name", metavar="NAME", nargs="?", help="a technique or a recipe field: its essay")
    output.add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the table, or the essay of one technique.

    Args:
        args: What the command line gave.

    Returns:
        0.

    Raises:
        InputError: There is no such technique.
    """
    if args.name is not None:
        found = _named(args.name)
        if args.json:
            output.print_json({"techniques": [_document(technique) for technique in found]})
            return 0
        for at, technique in enumerate(found):
            fields = ", ".join(technique.fields)
            print(("\n" if at else "") + f"{technique.name}  (fields: {fields}; fidelity: {technique.level})\n")
            print(essay(technique))
        return 0
    if args.json:
        output.print_json({"techniques": [_document(technique) for technique in TECHNIQUES]})
        return 0
    cells = [
        (row.name, ", ".join(row.fields), ", ".join(map(str, row.rows)), row.level, row.summary) for row in TECHNIQUES
    ]
    titles = ("technique", "recipe fields", "row", "fidelity", "what it saves")
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    table = Table([Column(title, width) for title, width in zip(titles, [*widths[:-1], 0], strict=True)])
    table.print_header()
    for row in cells:
        table.print_row(row)
    print("\nrow: number in the list of techniques of the guides. `snugfit techniques NAME` prints the essay.")
    return 0


def essay(technique: Technique) -> str:
    """Returns the essay of a technique: the docstring of its file, which is read and not run.

    Args:
        technique: A row of the table.

    Returns:
        The text.
    """
    package = importlib.util.find_spec("snugfit.techniques")
    assert package is not None and package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / f"{technique.name}.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text, f"{path} has no docstring"
    return text


def _named(name: str) -> list[Technique]:
    """Returns the technique of that name, or all that a recipe field of that name asks for."""
    wanted = name.lower().replace("-", "_")
    exact = [row for row in TECHNIQUES if row.name == wanted]
    found = exact or [row for row in TECHNIQUES if wanted in row.fields]
    if not found:
        raise InputError(f"technique {name!r} is unknown; {did_you_mean(wanted, [row.name for row in TECHNIQUES])}")
    return found


def _document(technique: Technique) -> dict[str, Any]:
    row = dataclasses.asdict(technique)
    return {**row, "fidelity": row.pop("level"), "essay": essay(technique)}
