"""The zoo's harness on a few quick models, each from another corner of it."""

import json

import pytest

for library in ("transformers", "torchvision", "timm"):
    pytest.importorskip(library)

QUICK = ("hf:bert", "hf:llama", "hf:clip", "hf:t5", "user:tagger", "timm:resnet10t")


@pytest.fixture(scope="module")
def zoo():
    from benchmarks import zoo

    return zoo


@pytest.fixture(scope="module")
def rows():
    from benchmarks import zoo_row

    return zoo_row


@pytest.mark.parametrize("name", QUICK)
def test_a_model_is_predicted_from_the_description_it_is_trained_from(rows, pool, name):
    row = rows.compared(rows.SUBJECTS[name](), pool)
    assert row["measured_bytes"] > 100_000
    assert abs(row["ratio"] - 1) <= 0.01, row


def test_a_plan_leaves_the_losses_as_they_are(rows, pool):
    row = rows.planned(rows.SUBJECTS["hf:bert"](), pool)
    assert row["plan_recipe"] and row["plan_measured_bytes"] <= row["budget_bytes"], row
    assert row["loss_difference"] <= row["loss_tolerance"], row


def test_what_a_model_does_wrong_is_its_row(zoo):
    child = zoo.Child()
    try:
        assert "KeyError" in child.ask("bytes", "hf:no such model", 300)["failed"]
        first = child._process
        assert "took longer" in child.ask("bytes", "hf:bert", 0)["failed"]
        assert first.poll() is not None  # it was ended, and another begins
    finally:
        child.close()


def test_the_zoo_is_as_large_as_it_says(rows):
    names = list(rows.SUBJECTS)
    assert len(names) >= 120
    assert sum(name.startswith("timm:") for name in names) >= 40
    assert sum(name.startswith("hf:") for name in names) >= 50
    assert sum(name.startswith("user:") for name in names) >= 20


def test_a_run_goes_on_where_it_was(zoo, monkeypatch, tmp_path):
    asked = []

    class Child:
        def ask(self, kind, name, limit):
            asked.append((kind, name))
            if name == "bad":
                return {"name": name, "failed": "why"}
            if kind == "plan":
                return {"name": name, "plan_refused": "why"}
            return {"name": name, "family": "f", "predicted_bytes": 97, "measured_bytes": 100, "ratio": 0.97}

        def close(self):
            pass

    monkeypatch.setattr(zoo, "Child", Child)
    monkeypatch.setattr(zoo, "save", lambda kept: (tmp_path / "rows.json").write_text(json.dumps(kept)))
    kept = {}
    zoo.run(["a", "bad"], minutes=None, again=False, plans=True, kept=kept)
    assert asked == [("bytes", "a"), ("bytes", "bad"), ("plan", "a")]
    assert json.loads((tmp_path / "rows.json").read_text()) == kept
    zoo.run(["a", "bad"], minutes=None, again=False, plans=True, kept=kept)
    assert asked[3:] == [("bytes", "bad")]
    found = zoo.summary(list(kept.values()))
    assert (found["models"], found["answered"], found["within_tolerance"], found["too_low"]) == (2, 1, 0, ["a"])


def test_the_page_counts_what_the_rows_say(zoo):
    from benchmarks.zoo_page import zoo_page

    rows = [
        {"name": "a", "family": "f", "predicted_bytes": 100, "measured_bytes": 100, "ratio": 1.0, "answered": []},
        {"name": "b", "family": "f", "predicted_bytes": 95, "measured_bytes": 100, "ratio": 0.95, "answered": []},
        {"name": "c", "family": "g", "measured_bytes": 100, "refused": "reading a number"},
    ]
    text = zoo_page(
        {"machine": {"date": "d", "processor": "p", "torch": "t"}, "libraries": {}, **zoo.summary(rows), "rows": rows}
    )
    assert "| f | 2 | 2 | 1 | 1 | -5.0 % (b) |" in text
    assert "| g | 1 | 0 | 0 | 0 |" in text and "reading a number" in text
