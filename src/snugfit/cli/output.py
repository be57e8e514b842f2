"""What commands print on stdout: a card for people, or one JSON document."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from typing import Any


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--json`.

    Args:
        parser: The subcommand's parser.
    """
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout, and nothing else there")


def print_json(document: Mapping[str, Any]) -> None:
    """Prints one JSON document on stdout.

    Args:
        document: Plain data; numbers are finite.
    """
    print(json.dumps(document, indent=2, allow_nan=False))


def print_card(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Prints a title and `name  value` lines on stdout.

    Args:
        title: One line.
        rows: Name and value; a value of several lines is indented under its first.
    """
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    print(title)
    for name, value in rows:
        first, *more = value.splitlines() or [""]
        print(f"  {name:<{width}}  {first}")
        for line in more:
            print(f"  {'':<{width}}  {line}")
