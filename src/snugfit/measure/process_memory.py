"""Memory of this process as the Linux kernel counts it. Imports no torch.

Source: proc(5): /proc/PID/status (VmRSS, VmHWM, RssFile) and /proc/PID/clear_refs (5 resets the peak).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProcessMemory:
    """One reading."""

    rss_bytes: int
    """Resident memory now."""

    peak_rss_bytes: int
    """Most resident memory since the last reset."""

    file_bytes: int
    """The part of `rss_bytes` that is pages of files, above all program code read in as it runs."""


def read_process_memory() -> ProcessMemory | None:
    """Returns the memory of this process, or None where the system does not tell (not Linux)."""
    try:
        text = _STATUS.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM", "RssFile"):
            fields[name] = int(value.split()[0]) * 1024
    if len(fields) < 3:
        return None
    return ProcessMemory(rss_bytes=fields["VmRSS"], peak_rss_bytes=fields["VmHWM"], file_bytes=fields["RssFile"])


def reset_peak() -> bool:
    """Makes the peak start again from the memory resident now.

    Returns:
        Whether the system allows it; without, the peak is that of the whole life of the process.
    """
    try:
        _CLEAR_REFS.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True
