"""Host memory that is free for training: what the system says, and no more than a container is allowed."""

from __future__ import annotations

from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def free_host_bytes() -> int | None:
    """Returns the host memory that is free, None where the system does not say.

    Returns:
        Bytes: `MemAvailable` of Linux, or what a control group leaves, whichever is less.
    """
    known = [size for size in (_available(_MEMINFO), _left_in_group(_CGROUP)) if size is not None]
    return min(known, default=None)


def _available(path: Path) -> int | None:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


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
