"""The accuracy page is made from rows alone: a literal table of rows gives a literal table of errors."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def report():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        yield importlib.import_module("benchmarks.report")


def row(name, predicted, measured, half="tuning", family="ViT", recipe=None, model="efficientnet_b0", **more):
    peak = {"peak_phase": "backward", "peak_operator": "aten.mm.default", "host_bytes": 0}
    return {
        "name": name, "half": half, "settings": {"model": model, "family": family, "recipe": recipe or {}, "training": {}},
        "predicted": {"allocated_bytes": predicted, "reserved_bytes": None, **peak},
        "measured": {"allocated_bytes": measured, "reserved_bytes": None, "host_bytes": 0},
        "versions": {"torch": "9.9"}, "processor": "abacus", "date": "2030-01-02T03:04:05Z", **more,
    }  # fmt: skip


ROWS = [
    row("a", 102, 100),
    row("b", 90, 100, half="validation", recipe={"checkpoint": "all"}, model="vit_l_16"),
    row("c", 100, 100, half="validation", family="CNN"),
    row("d", 101, 100),
]


def test_the_spread_of_errors(report):
    found = report.memory.distribution(ROWS, "allocated_bytes")
    assert found["rows"] == 4 and found["median"] == pytest.approx(0.015)
    assert found["over"] == pytest.approx(0.02) and found["under"] == pytest.approx(-0.1)
    assert found["within_2_percent"] == 3
    assert report.memory.distribution([], "allocated_bytes") is None
    assert report.memory.distribution(ROWS, "reserved_bytes") is None


def write(folder, rows):
    folder.mkdir(parents=True)
    (folder / "accuracy.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")


def test_the_page_says_what_was_measured_and_what_was_not(report, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "FIGURES", tmp_path / "figures")
    failed = {**row("e", 1, 1), "error": "it broke"}
    left_out = {**row("f", 1, 1), "left_out": "not installed: x"}
    left_out.pop("measured")
    write(tmp_path / "cpu-torch9.9", [*ROWS, failed, left_out])
    (tmp_path / "published.json").write_text((report.RESULTS / "published.json").read_text(encoding="utf-8"), "utf-8")
    page = "".join(report.pages(tmp_path).values())
    assert "No card has been measured yet" in page and "abacus" in page and "2030-01-02" in page
    assert "| validation | 2 | 5.00 % | +0.00 % | -10.00 % | 1 of 2 |" in page
    assert "| tuning | 2 | 1.50 % | +2.00 % | +0.00 % | 2 of 2 |" in page
    assert "| checkpoint=all | 1 | 10.00 %" in page and "| CNN | 1 | 0.00 %" in page
    assert page.index("`b`") < page.index("`a`"), "the worst row comes first"
    assert (
        "| `b` (stand-in of 0.69 M parameters) |" in page
        and "| `a` |" in page
        and "Of full size are efficientnet_b0" in page
    )
    assert "- `e`: it broke" in page and "- `f`: not installed: x" in page
    assert (tmp_path / "figures" / "accuracy-cpu-torch9.9.png").stat().st_size > 1000
    write(tmp_path / "nvidia-h200-torch9.9", ROWS)
    both = "".join(report.pages(tmp_path).values())
    assert "No card has been measured yet" not in both
    assert "| `b` |" in both.partition("## cpu-")[0]  # on a card it is what it is called


def test_the_pages_in_the_repository_are_those_that_its_results_make(report, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "FIGURES", tmp_path)
    there = [ROOT / "docs" / "accuracy.md", *(ROOT / "docs" / "accuracy").glob("*.md")]
    found = {path.relative_to(ROOT / "docs").as_posix(): path.read_text(encoding="utf-8") for path in there}
    assert found == report.pages(), "run make docs"
    assert len(found["accuracy.md"].splitlines()) <= 60  # a summary


@pytest.mark.parametrize(
    ("errors", "ticks"),
    [
        ([], [1, 2, 5]),
        ([0.2, -0.4], [1, 2, 5]),
        ([-3.0], [1, 2, 5]),
        ([5.0], [1, 2, 5]),
        ([-30.0, 1.0], [1, 2, 5, 10, 20, 50]),
        ([5000.0], [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]),
    ],
)
def test_ticks_of_errors(report, errors, ticks):
    assert report.memory.percent_ticks(errors) == [*(-tick for tick in reversed(ticks)), 0, *ticks]


@pytest.mark.parametrize("worst", [0.001, 0.3])
def test_the_figure_has_plain_percentages(report, tmp_path, monkeypatch, worst):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="figures need matplotlib")
    kept = []
    monkeypatch.setattr(pyplot, "close", kept.append)
    rows = [row("a", round(2**24 * (1 + worst)), 2**24), row("b", 2**30, 2**30), row("c", 2**20, 2**20)]
    assert report.memory.figure(rows, "cpu-x", tmp_path / "a.png")
    monkeypatch.undo()
    [chart] = kept
    axes = chart.axes[0]
    chart.canvas.draw()
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert {"0 %", "+1 %", "-2 %"} <= set(labels) and not any("^" in label or "$" in label for label in labels)
    assert not any("^" in text.get_text() for text in axes.get_xticklabels())
    low, high = axes.get_ylim()
    assert low < -100 * worst and 100 * worst < high
    pyplot.close(chart)


def test_the_clock_is_drawn_card_by_card(report, tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="figures need matplotlib")
    clock_page = importlib.import_module("benchmarks.clock_page")
    found = {
        "card": "rtx-3090",
        "rows": [{"step_ms": 2.0, "predicted_ms": 3.0}] * 2,
        "lambda": {
            "rows": [
                {"card": "t4-16gb", "step_ms": 5.0, "predicted_ms": 4.0},
                {"card": "rtx-3090", "step_ms": 1.0, "predicted_ms": 1.0},
            ]
        },
    }
    points = clock_page.points_of(found)
    assert points == {"rtx-3090": [(2.0, 3.0), (2.0, 3.0), (1.0, 1.0)], "t4-16gb": [(5.0, 4.0)]}
    kept = []
    monkeypatch.setattr(pyplot, "close", kept.append)
    clock_page.figure(points, tmp_path / "clock.png")
    monkeypatch.undo()
    titles = [axes.get_title() for axes in kept[0].axes]
    assert titles == ["rtx-3090: 1 of 3 within 25 %", "t4-16gb: 1 of 1 within 25 %"]
    assert (tmp_path / "clock.png").stat().st_size > 1000


def test_the_worst_of_a_clocks_passes_stand_beside_their_medians(report):
    step = {"step_seconds": 0.01, "checkpointed_step_seconds": 0.02}

    def one(plain: float, checkpointed: float) -> dict:
        return {**step, "predicted_step_seconds": plain, "predicted_checkpointed_step_seconds": checkpointed}

    row = {
        "name": "step: a model",
        "measured": {**one(0.011, 0.02), "block_seconds": 0.001, "predicted_block_seconds": 0.001, "passes": []},
    }
    assert "passes" not in report.clock([row], "cpu")
    row["measured"]["passes"] = [one(0.0125, 0.02), one(0.011, 0.016)]
    assert "off by -20.00 % to +25.00 %" in report.clock([row], "cpu")
