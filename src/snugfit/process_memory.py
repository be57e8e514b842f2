"""Memory of this process as the Linux kernel counts it, and what the system has left. Imports no torch.

Source: proc(5): /proc/PID/status (VmRSS, VmHWM, RssFile) and /proc/PID/clear_refs (5 resets the peak); mallopt(3).
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProcessMemory:
    """One reading."""

    rss_bytes: int
    """Resident memory now."""

    peak_rss_bytes: int
    """Most resident memory since the last reset."""

    file_bytes: int
    """The part of `rss_bytes` that is pages of files, above all program code read in as it runs."""

    @property
    def anonymous_bytes(self) -> int:
        """Resident memory now without those."""
        return self.rss_bytes - self.file_bytes


def read_process_memory() -> ProcessMemory | None:
    """Returns the memory of this process, or None where the system does not tell (not Linux)."""
    found = kernel_bytes(_STATUS)
    if not {"VmRSS", "VmHWM", "RssFile"} <= found.keys():
        return None
    return ProcessMemory(rss_bytes=found["VmRSS"], peak_rss_bytes=found["VmHWM"], file_bytes=found["RssFile"])


def kernel_bytes(path: Path) -> dict[str, int]:
    """Returns the lines of a file of the kernel that are told in kB, by name; nothing where there is no such file."""
    try:
        rows = [line.split() for line in path.read_text(encoding="ascii", errors="replace").splitlines()]
    except OSError:
        return {}
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) == 3 and row[2] == "kB"}


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


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD_BYTES = 32 * 2**20
_KEPT_FREE_BYTES = 2**30


def keep_freed_memory() -> None:
    """Lets glibc keep freed memory for later again, as an ordinary process does; elsewhere nothing happens.

    A process whose every tensor is a map of its own is easy to measure and slow: each map is filled with zeros, page by
    page (a step of small tensors then takes up to twice as long).
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    ]


def heap_in_use_bytes() -> int | None:
    """Returns what this process has allocated and not freed, tensors included; None where the system does not tell.

    Takes milliseconds in a process with much that is free in between.
    """
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    ask.restype = _Mallinfo
    told = ask()
    return int(told.uordblks + told.hblkhd)


def free_host_bytes() -> int | None:
    """Returns the host memory that is free, None where the system does not say.

    Returns:
        Bytes: `MemAvailable` of Linux, or what a control group leaves, whichever is less.
    """
    known = [size for size in (kernel_bytes(_MEMINFO).get("MemAvailable"), _left_in_group(_CGROUP)) if size is not None]
    return min(known, default=None)


def _left_in_group(folder: Path) -> int | None:
    """What a version 2 control group leaves; its page cache is given back under pressure and counts as free."""
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        rows = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    if not limit.isdecimal():
        return None
    cached = next((int(row.split()[1]) for row in rows if row.startswith("inactive_file ")), 0)
    return max(int(limit) - used + cached, 0)
