"""`snugfit techniques`: the table and the essays."""

from __future__ import annotations

import json

import pytest
from run_code import run_code

from snugfit.cli import main
from snugfit.cli.techniques import not_here
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


def test_no_torch_is_loaded():
    program = (
        "import sys; from snugfit.cli import main; main(['techniques', 'init']); assert 'torch' not in sys.modules"
    )
    assert run_code(program, without_torch=True).returncode == 0


TYPED = {
    "lora": ["adapter"],
    "dora": ["adapter"],
    "qlora": ["adapter", "quantize"],
    "amp": ["mixed_precision"],
    "bf16": ["mixed_precision", "true_precision"],
    "gradient-checkpointing": ["checkpoint"],
    "Gradient Checkpointing": ["checkpoint"],
    "grad-accum": ["microbatch"],
    "grad_accum": ["microbatch"],
    "flash-attention": ["attention"],
    "flashattention": ["attention"],
    "8bit-adam": ["low_bit_optimizer"],
    "cpu-offload": ["offload_activations", "offload_optimizer"],
    "torch.compile": ["compile"],
    "paged": ["low_bit_optimizer"],
}


@pytest.mark.parametrize("typed", TYPED)
def test_what_people_type_is_found(typed, capsys):
    assert main(["techniques", typed, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["techniques"]
    assert [row["name"] for row in rows] == TYPED[typed]


@pytest.mark.parametrize("typed", not_here())
def test_what_is_not_here_says_so_and_names_the_nearest(typed, capsys):
    assert main(["techniques", typed]) == 2
    message = capsys.readouterr().err
    [nearest] = [row.name for row in TECHNIQUES if f"`snugfit techniques {row.name}`" in message]
    assert main(["techniques", nearest]) == 0


def test_other_names_are_words_and_no_names_of_something_else():
    names = {row.name.replace("_", "-") for row in TECHNIQUES}
    fields = {field.replace("_", "-") for row in TECHNIQUES for field in row.fields}
    for row in TECHNIQUES:
        assert len(set(row.aliases)) == len(row.aliases)
        for alias in row.aliases:
            assert alias == alias.lower() and alias.strip("-") == alias and "_" not in alias
            assert alias not in (names | fields) - {row.name}, alias
            assert alias not in not_here(), alias
