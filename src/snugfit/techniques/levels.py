"""How close an update is to that of plain training. Imports no torch."""

from __future__ import annotations

from typing import Literal

Level = Literal["exact", "rounding", "different"]
LEVELS: tuple[Level, ...] = ("exact", "rounding", "different")
