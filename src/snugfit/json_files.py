"""JSON documents: written so that people can read them; those handed to a command are read, or it is told why not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from snugfit.errors import InputError

_NUMBER = r"-?\d[\d.eE+-]*"
_NUMBERS = re.compile(rf"\[\n\s+({_NUMBER}(?:,\n\s+{_NUMBER})*)\n\s+\]")  # no string of JSON has a line break in it


def json_text(document: Any) -> str:
    """Returns a document as indented JSON, lists of numbers on one line; `ValueError` for numbers that JSON has not."""
    text = json.dumps(document, indent=2, allow_nan=False)
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text)


def read_json(path: Path, named: str, *, instead: str, missing: str = "Give an existing file.") -> Any:
    """Reads a document; `InputError` for a file that is none.

    `named`: the file in messages.
    `instead`: what to do where it is not JSON.
    `missing`: what to do where it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{named} cannot be read: {error.strerror or error}. {missing}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{named} is not JSON: {error}. {instead}") from error
