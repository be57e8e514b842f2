"""What commands print on stdout: a card for people, or one JSON document."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
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
