"""Which code is an installed library's, wherever it is installed."""

from __future__ import annotations


def is_installed(file: str) -> bool:
    """Whether a source file lies among a Python's libraries: its own, a user's, Debian's, or those of another one."""
    return "site-packages" in file or "dist-packages" in file
