"""Runs code in a process of its own: `python -m run_code CODE` can start warm (`warm_start.py`), as `python -c` cannot."""

import subprocess
import sys
from pathlib import Path

import patience


def run_code(code: str, *, without_torch: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs it to its end; torch may be loaded there already unless it is asked for without, and no other library is."""
    return subprocess.run(
        [sys.executable, "-m", "run_code", *(["--without-torch"] if without_torch else []), code],
        cwd=Path(__file__).parent, capture_output=True, text=True, timeout=patience.SECONDS, check=False,
    )  # fmt: skip


if __name__ == "__main__":
    exec(sys.argv[-1], {"__name__": "__main__"})
