"""The strangers' harness on code of our own, in the place where foreign code would lie."""

import dataclasses
import sys

import pytest

torch = pytest.importorskip("torch")

CODE = """
import torch
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8))
"""


@pytest.fixture
def case(tmp_path, monkeypatch):
    """A repository on the disk, and how it is adopted."""
    from benchmarks import stranger_row
    from benchmarks.stranger_cases import adopted, sources

    folder = tmp_path / "somebody__something"
    folder.mkdir()
    (folder / "net_of_somebody.py").write_text(CODE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sources.SOURCES, "somebody/something", sources.Source("0" * 40))

    def adopt():
        from net_of_somebody import Net

        return adopted.Adopted(
            model=Net,
            batch=lambda: (torch.randn(512, 64), torch.randint(8, (512,))),
            loss=lambda output, batch: torch.nn.functional.cross_entropy(output, batch[1]),
        )

    entered = adopted.Case(name="net", kind="test", repository="somebody/something", adopt=adopt)
    monkeypatch.setitem(adopted.CASES, "net", entered)
    return stranger_row.entered("net", tmp_path)


def test_a_stranger_is_measured_predicted_planned_and_held_against_its_plain_loop(case, pool):
    from benchmarks import stranger_row, strangers

    row = stranger_row.measured(case, pool)
    row |= stranger_row.planned(case, pool)
    assert case.lines == 6
    assert row["measured_bytes"] > 100_000 and abs(row["ratio"] - 1) < 0.001
    assert row["compared_in"] == "float64" and row["plan_measured_bytes"] < row["measured_bytes"]
    assert strangers.is_answered(row) and strangers.is_right(row) and strangers.is_as_plain(row), row


def test_a_plan_that_trains_something_else_is_seen(case):
    from benchmarks import stranger_row

    from snugfit.recipe import Recipe

    exact = stranger_row.held_against_the_plain_loop(case, Recipe())
    rounded = stranger_row.held_against_the_plain_loop(case, Recipe(optimizer="sgd"))
    assert max(exact["loss_difference"], exact["weight_difference"]) <= exact["tolerance"]
    assert rounded["weight_difference"] > rounded["tolerance"]


def test_code_that_casts_is_known_from_code_that_computes_in_float64(case):
    from benchmarks import stranger_row

    def casts():
        adopted = case.adopt()
        return dataclasses.replace(adopted, forward=lambda model, batch: model(batch[0]).float())

    with stranger_row.numbers(torch.float64):
        assert not stranger_row._rounds(case)
        assert stranger_row._rounds(dataclasses.replace(case, adopt=casts))


def test_wrong_answers_are_counted_and_named():
    from benchmarks import strangers

    good = {
        "name": "good",
        "repository": "a/b",
        "own_loop": False,
        "ratio": 1.01,
        "fidelity": "exact",
        "tolerance": 1e-9,
    }
    good |= {"measured_bytes": 100, "predicted_bytes": 101, "plan_measured_bytes": 50, "plan_predicted_bytes": 50}
    good |= {"budget_bytes": 60, "loss_difference": 0.0, "weight_difference": 1e-12}
    rows = [
        good,
        {**good, "name": "low", "ratio": 0.9},
        {**good, "name": "plan low", "plan_predicted_bytes": 40},
        {**good, "name": "other weights", "weight_difference": 1e-3},
        {**good, "name": "other weights, and said so", "weight_difference": 1e-3, "fidelity": "rounding"},
        {**good, "name": "loop", "repository": "a/c", "own_loop": True},
        {"name": "no plan", "repository": "a/c", "own_loop": True, "ratio": 1.0, "plan_refused": "why not"},
        {"name": "refused", "repository": "a/d", "own_loop": False, "measured_bytes": 100, "refused": "why"},
    ]
    found = strangers.summary(rows)
    assert found["wrong"] == ["low", "plan low", "other weights"] and found["not_answered"] == ["no plan", "refused"]
    assert (found["answered"], found["repositories"], found["answered_repositories"], found["right"]) == (6, 3, 2, 3)
    from benchmarks.strangers_page import strangers_page

    text = strangers_page(
        {
            "machine": {"date": "d", "processor": "p", "torch": "t"},
            **found,
            "packages": [],
            "rows": [_whole(r) for r in rows],
        }
    )
    assert "6 of 8" in text and "refused: why" in text and "| low |" in text and "own loop: plain" in text


def _whole(row):
    return {
        "kind": "k",
        "commit": "0" * 40,
        "lines": 3,
        "answered": [],
        "plan_recipe": {},
        "compared_in": "float64",
        **row,
    }


def test_no_adoption_is_longer_than_ten_lines():
    from benchmarks.stranger_cases import CASES
    from benchmarks.stranger_cases.adopted import LINES
    from benchmarks.stranger_cases.sources import SOURCES

    assert not {case.name: case.lines for case in CASES.values() if case.lines > LINES}
    assert {case.repository for case in CASES.values()} == set(SOURCES)
    assert len(SOURCES) >= 40


def test_what_is_missing_is_said_with_the_way_to_get_it(tmp_path):
    from benchmarks.stranger_cases.sources import SOURCES, commands, missing

    assert missing(tmp_path) == list(SOURCES)
    lines = commands(tmp_path)
    assert sum("git clone" in line for line in lines) == len(SOURCES)
    repository, source = next(iter(SOURCES.items()))
    assert any(repository in line and source.commit in line for line in lines)
