"""What the ladder's table and figure take from a rung's entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PEAKS = ("peak_tensor_bytes", "peak_reserved_bytes")
"""The one number that stands for a rung's memory: tensors on the CPU; on CUDA what the allocator took, as in the guides."""


def peak_bytes(rung: Mapping[str, Any]) -> int | None:
    """Returns the peak of a rung: measured, or predicted for one that was not trained.

    Args:
        rung: An entry of `ladder --json`.

    Returns:
        Bytes, or None for a rung that failed.
    """
    measured = rung["measured"] or {}
    found = [measured[name] for name in PEAKS if measured.get(name) is not None]
    if found:
        return int(found[0])
    predicted = rung.get("predicted") or {}
    total = predicted.get("total_bytes") if rung.get("error") is None and rung["measured"] is None else None
    return None if total is None else int(total)
