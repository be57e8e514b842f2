"""The ladder's figure: what is written in it, read from the SVG, and that no two texts overlap."""

from __future__ import annotations

import itertools

import pytest

from snugfit.report import ladder_figure

pytest.importorskip("matplotlib", reason="figures need the report extra")

RUNGS = [
    ("fp32", "plain PyTorch: Adam, batch 64", "exact", 42_448_460, 12.1, 0.967),
    ("bf16-mixed", "autocast to bf16", "rounding", 30_100_000, 14.0, 0.965),
    ("batch-16", "batch 16", "different", 6_100_000, 16.0, 0.972),
    ("checkpoint", "every block recomputed in backward", "different", None, None, None),
    ("step-in-backward", "batch 4, each gradient used at once", "different", 1_500_000, 40.0, 0.95),
]


def entries():
    return [
        {
            "name": name, "change": change, "fidelity": {"level": level, "reasons": {}},
            "measured": None if size is None else {"peak_tensor_bytes": size},
            "seconds": seconds, "metrics": None if accuracy is None else {"test_accuracy": accuracy},
            "error": "the loss is NaN." if size is None else None,
        }
        for name, change, level, size, seconds, accuracy in RUNGS
    ]  # fmt: skip


def test_png_and_svg_say_it_all(tmp_path, monkeypatch):
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # texts stay texts
    paths = [tmp_path / "ladder.png", tmp_path / "ladder.svg"]
    ladder_figure.draw_ladder(entries(), title="model on data, CPU", paths=paths)
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    text = paths[1].read_text()
    for said in ("model on data, CPU", "fp32", "+ step-in-backward", "40.5 MiB", "28\N{MULTIPLICATION SIGN} less", "96.7%",
                 "40 s", "Peak memory (MiB)", "failed: the loss is NaN.", "rounding: fewer bits"):  # fmt: skip
        assert said in text, said


def test_no_two_texts_overlap(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figures = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, path: (figures.append(self), save(self, path))[1])
    ladder_figure.draw_ladder(entries(), title="model on data, CPU", paths=[tmp_path / "ladder.png"])
    [figure] = figures
    renderer = figure.canvas.get_renderer()
    texts = [*figure.texts, *figure.legends[0].texts]
    for axes in figure.axes:
        texts += [*axes.texts, axes.title, axes._left_title, *axes.get_xticklabels()]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts if text.get_text().strip()]
    assert len(boxes) > 25
    for (first, one), (second, other) in itertools.combinations(boxes, 2):
        assert not one.overlaps(other), f"{first!r} over {second!r}"
    page = figure.bbox
    for name, box in boxes:
        assert page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1, name
