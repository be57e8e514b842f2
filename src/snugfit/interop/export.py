"""What an export comes to: the other tool's file, and what a person must know about it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """A recipe in the words of another tool."""

    target: str
    """The tool."""
    config: Mapping[str, Any]
    """Its file, as plain data."""
    notes: tuple[str, ...]
    """What of the recipe the file does not say, and what the script that uses it has to do."""

    def text(self) -> str:
        """Returns the file's text."""
        return json.dumps(self.config, indent=2, allow_nan=False) + "\n"

    def to_mapping(self) -> dict[str, Any]:
        """Returns plain data."""
        return {"target": self.target, "config": dict(self.config), "notes": list(self.notes)}
