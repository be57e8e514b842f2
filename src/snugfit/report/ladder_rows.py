"""What the ladder's table and figure take from a rung's entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PEAKS = ("peak_tensor_bytes", "peak_reserved_bytes")
"""The one number that stands for a rung's memory: tensors on the CPU; on CUDA what the allocator took, as in the guides."""


def measured_bytes(rung: Mapping[str, Any]) -> int | None:
    """Returns the measured peak of a rung.

    Args:
        rung: An entry of `ladder --json`.

    Returns:
        Bytes, or None for a rung that failed.
    """
    measured = rung["measured"] or {}
    found = [measured[name] for name in PEAKS if measured.get(name) is not None]
    return int(found[0]) if found else None
