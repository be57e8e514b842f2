"""What an export is: another tool's configuration, how its file is written, and what it does not say."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from snugfit.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """A recipe in the words of another tool."""

    target: str
    """The tool."""
    config: Mapping[str, Any]
    """Its file, as plain data."""
    notes: tuple[str, ...]
    """What of the recipe the file does not say, and what the script that uses it has to do."""
    follows: Recipe
    """The recipe that the tool follows with this file: where it has no word for a field, another one."""
    format: str = "json"
    """How the file is written: json, yaml, or arguments of a command line."""

    def text(self) -> str:
        """Returns the file's text."""
        if self.format == "yaml":
            import yaml

            return str(yaml.safe_dump(dict(self.config), sort_keys=False))
        if self.format == "arguments":
            return _arguments(self.config)
        return json.dumps(self.config, indent=2, allow_nan=False) + "\n"

    def to_mapping(self) -> dict[str, Any]:
        """Returns plain data."""
        return {"target": self.target, "config": dict(self.config), "notes": list(self.notes)}


def _arguments(config: Mapping[str, Any], prefix: str = "") -> str:
    """Keys as `--section.key=value`, one a line."""
    lines = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            lines.append(_arguments(value, f"{prefix}{key}."))
        elif isinstance(value, bool):
            lines.append(f"--{prefix}{'' if value else 'no-'}{key}\n")
        else:
            lines.append(f"--{prefix}{key}={value}\n")
    return "".join(lines)
