"""The gallery: its lines are commands, its rows what those commands answer, its page what the rows say."""

import json
import re
import shlex

import pytest
from benchmarks import gallery
from benchmarks.gallery import command_of, rows_of, rows_wanted
from benchmarks.gallery_page import gallery_page
from benchmarks.results_file import RESULTS

from snugfit.cli import main, parse
from snugfit.devices import device_named
from snugfit.recipe import Recipe


def test_every_line_is_taken():
    for model, method, cards in rows_wanted():
        for card in cards:
            parse(shlex.split(command_of(model, method, card))[1:])


SMALL = """
from torch import nn


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
"""


def test_rows_are_what_the_command_answers(pool, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gallery, "ALLOWED", ["exact"])
    (tmp_path / "small.py").write_text(SMALL)
    model = {"name": "small", "family": "none", "model": f"{tmp_path}/small.py:build", "batch_size": 4}
    model["options"] = {"image-size": 32}
    cards = [device_named("rtx-3060-12gb"), device_named("a100-40gb")]
    rows = list(rows_of(model, "full", cards, pool))
    assert [row["card"] for row in rows] == ["a100-40gb", "rtx-3060-12gb"]
    capsys.readouterr()
    for row in rows[1:]:  # the one that was made from the first's recordings
        assert main([*shlex.split(row["command"])[1:], "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert Recipe.from_mapping(plan["recipe"]) == Recipe.from_mapping(row["recipe"])
        assert plan["estimate"]["step_seconds"] == row["step_seconds"]
        assert plan["budgets"]["points"][-1]["need_bytes"] < row["least_bytes"] < plan["budget_bytes"]


@pytest.mark.parametrize("field", ["command", "words"])
def test_the_page_has_all_rows(field):
    page = gallery_page(RESULTS)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    rows = json.loads((RESULTS / "gallery.json").read_text())["rows"]
    assert [row.get(field) for row in data["rows"]] == [row.get(field) for row in rows]
    assert all(row["error"] for row in data["rows"])
