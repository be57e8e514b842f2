"""Images that cannot be read: skipped, counted and named in the result; with --strict the run stops there."""

import json

import pytest

Image = pytest.importorskip("PIL.Image")

from snugfit.cli import main  # noqa: E402

WORDS = ["train", "model.py:build", "--data", "imagefolder:photos", "--image-size", "8", "--batch-size", "4"]


@pytest.fixture
def photos(folder, monkeypatch):
    for name in ("cat", "dog"):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(20):
            Image.new("L", (8, 8), number * 10).save(folder / "photos" / name / f"{number}.png")
    monkeypatch.chdir(folder)
    return folder / "photos"


def spoil(photos, count):
    for number in range(count):
        (photos / "cat" / f"{number}.png").write_bytes(b"\x89PNG no picture")


def result(capsys, *more):
    code = main([*WORDS, "--model-arg", "num_classes=2", "--max-steps", "2", "--json", *more])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


def test_a_run_does_not_go_on_with_other_data(photos, capsys):
    assert result(capsys, "--run-dir", "run", "--max-steps", "3")[0] == 0
    (photos / "dog").rename(photos / "ant")
    code = main(["train", "--run-dir", "run", "--resume", "--max-steps", "4"])
    assert code == 2 and "has changed since it began" in capsys.readouterr().err
    (photos / "ant").rename(photos / "dog")
    assert main(["train", "--run-dir", "run", "--resume", "--max-steps", "4"]) == 0


@pytest.mark.parametrize("more", [(), ("--strict",)])
def test_nothing_is_skipped_where_all_can_be_read(photos, capsys, more):
    code, out, _ = result(capsys, *more)
    assert code == 0
    assert json.loads(out)["unreadable"] == {"files": 0, "first": []}


def test_unreadable_images_are_counted_and_named(photos, capsys):
    spoil(photos, 2)
    code, out, err = result(capsys)
    assert code == 0
    found = json.loads(out)["unreadable"]
    assert found["files"] == 2 and sorted(found["first"]) == sorted(str(path) for path in named(photos, found))
    assert "2" in err and "0.png" in err + str(found["first"])


def named(photos, found):
    paths = [path for path in found["first"] if path.endswith(("cat/0.png", "cat/1.png"))]
    assert len(paths) == 2
    return paths


def test_many_are_counted_and_some_are_named(photos, capsys):
    spoil(photos, 12)
    code, out, _ = result(capsys)
    assert code == 0
    found = json.loads(out)["unreadable"]
    assert found["files"] == 12 and len(found["first"]) == 10


def test_strict_stops_at_the_first_and_names_it(photos, capsys):
    spoil(photos, 1)
    code, out, err = result(capsys, "--strict")
    assert code == 2 and out == ""
    assert "0.png" in err and "cannot be read" in err
    assert not (photos.parent / "runs").exists()
