"""JSON documents that people hand to a command: read, or told why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from snugfit.errors import InputError


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
