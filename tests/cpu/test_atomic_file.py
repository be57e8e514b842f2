"""Folders that appear when all that is in them is complete."""

import pytest

from snugfit.atomic_file import filled_folder


def listing(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def fill(path, **files):
    with filled_folder(path) as folder:
        for name, text in files.items():
            file = folder / name.replace("_in_", "/")
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)


@pytest.mark.parametrize("place", ["new", "deep/er/new", "empty", "old", "."])
def test_a_folder_is_filled_or_left_as_it_was(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "old" / "b").mkdir(parents=True)
    (tmp_path / "old" / "a").write_text("old")
    (tmp_path / "old" / "mine").write_text("mine")
    before, folders = listing(tmp_path), sorted(tmp_path.rglob("*"))
    path = tmp_path if place == "." else tmp_path / place
    with pytest.raises(OSError, match="full"), filled_folder(path) as folder:
        (folder / "a").write_text("half")
        raise OSError("full")
    assert listing(tmp_path) == before and sorted(tmp_path.rglob("*")) == folders
    kept = listing(path) if path.is_dir() else {}
    fill(path, a="new", b_in_c="deep")
    assert listing(path) == {**kept, "a": "new", "b/c": "deep"}
    assert not list(tmp_path.rglob(".writing-*")) and not list(tmp_path.parent.glob(".writing-*"))


def test_a_link_to_a_folder_stays_one(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    fill(tmp_path / "near", a="new")
    assert (tmp_path / "near").is_symlink() and listing(tmp_path / "far") == {"a": "new"}
