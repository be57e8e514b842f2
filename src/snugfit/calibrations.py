"""What `snugfit calibrate` measured of this machine, kept in the user's cache folder. Imports no torch.

One JSON file a device, torch and settings: another torch, another number of threads or another card is another file, so a
measurement that no longer holds is not found rather than wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snugfit.atomic_file import replaced_file
from snugfit.errors import InputError, in_words, warn

FORMAT = 7
"""Changes when what is measured, or how, changes: older files are then not found."""


def cache_folder(name: str) -> Path:
    """Returns our folder in the user's cache, which need not exist; `RuntimeError` where there is no home."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "snugfit" / name


def place_of(identity: Mapping[str, Any]) -> Path:
    """Returns the file for a device, which need not exist; `identity` is what the measurement holds for."""
    text = json.dumps({**identity, "format": FORMAT}, sort_keys=True)
    return cache_folder("calibrations") / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def kept(identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns what was measured of a device; None where there is nothing, or (with a warning) nothing readable."""
    try:
        path = place_of(identity)
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.pop("checksum") == _checksum(found) and found["identity"] == dict(identity):
            return dict(found)
        problem = "it was altered"
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = in_words(error)
    warn(f"the calibration in {path} cannot be used ({problem}) and is ignored; `snugfit calibrate` makes it anew.")
    return None


def identities() -> list[dict[str, Any]]:
    """Returns what there are calibrations of: of any device, torch and settings of this machine."""
    try:
        files = sorted(cache_folder("calibrations").glob("*.json"))
    except (OSError, RuntimeError):
        return []
    found = []
    for path in files:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            identity = json.loads(path.read_text(encoding="utf-8"))["identity"]
            if place_of(identity) == path:  # one that an earlier version wrote is elsewhere
                found.append(identity)
    return found


def keep(identity: Mapping[str, Any], found: Mapping[str, Any]) -> Path:
    """Stores what was measured of a device (plain data with `speeds`), and returns the file."""
    try:
        path = place_of(identity)
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = json.loads(json.dumps({"identity": dict(identity), **found}))
        text = json.dumps({**whole, "checksum": _checksum(whole)}, indent=1) + "\n"
        with replaced_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"the calibration cannot be kept ({error}); set XDG_CACHE_HOME to a folder that can be written."
        ) from error
    return path


def _checksum(found: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
