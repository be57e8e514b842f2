"""Host memory that is free for training: what the system says, and no more than a container is allowed."""

from __future__ import annotations

from pathlib import Path

from snugfit.measure.process_memory import kernel_bytes

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


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
