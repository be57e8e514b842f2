"""`snugfit techniques`: the table and the essays."""

from __future__ import annotations

import json
import subprocess
import sys

import patience

from snugfit.cli import main
from snugfit.techniques import TECHNIQUES


def test_table_names_every_technique(capsys):
    assert main(["techniques"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for row in TECHNIQUES:
        [line] = [line for line in lines if line.split("  ")[0] == row.name]
        assert row.level in line and row.summary in line


def test_every_technique_has_an_essay(capsys):
    assert main(["techniques", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["techniques"]
    assert [row["name"] for row in rows] == [row.name for row in TECHNIQUES]
    for row in rows:
        assert len(row["essay"]) > 200
        assert row["fidelity"] in ("exact", "rounding", "different")


def test_essay_by_technique_or_field(capsys):
    assert main(["techniques", "true-precision"]) == 0
    essay = capsys.readouterr().out
    assert main(["techniques", "precision"]) == 0
    several = capsys.readouterr().out
    assert essay in several
    assert "tf32" in several and "mixed_precision" in several


def test_unknown_technique(capsys):
    assert main(["techniques", "chekpoint"]) == 2
    assert "did you mean 'checkpoint'" in capsys.readouterr().err


def test_no_torch_is_loaded():
    program = (
        "import sys; from snugfit.cli import main; main(['techniques', 'init']); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=patience.SECONDS)
