"""Every part of the ground truth measures its first row on a real card."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.real_kernels
@pytest.mark.parametrize("part", ["accuracy", "traces", "ladder", "clock", "faults", "plans", "overhead"])
def test_the_first_row_of_a_part_is_measured(part, tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cuda", "--only", part, "--rows", "1"]
    done = subprocess.run(
        [*command, "--results", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=600, check=True
    )
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["failed"] == 0 and summary["measured"] + summary["left_out"] == 1, done.stdout
    if part == "accuracy" and summary["measured"]:
        (line,) = (tmp_path / summary["place"] / "accuracy.jsonl").read_text(encoding="utf-8").splitlines()
        row = json.loads(line)
        reserved = row["measured"]["reserved_bytes"]
        assert reserved >= row["measured"]["allocated_bytes"] > 0
        assert row["predicted"]["reserved_bytes"] == pytest.approx(reserved, rel=0.1)
