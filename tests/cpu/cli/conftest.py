import shutil

import broken_things
import pytest
from command_line import MODEL_FILE


@pytest.fixture
def folder(tmp_path):
    """A working directory with a file of models."""
    (tmp_path / "model.py").write_text(MODEL_FILE)
    return tmp_path


@pytest.fixture(scope="session")
def _broken_things(tmp_path_factory):
    """One folder for hundreds of lines: making it takes longer than most of them, and deleting it again as long."""
    folder = tmp_path_factory.mktemp("broken")
    broken_things.make_folder(folder)
    return folder, broken_things.listing(folder)


@pytest.fixture
def broken_folder(_broken_things, monkeypatch):
    """A working directory full of broken things, which stay as they are."""
    folder, before = _broken_things
    monkeypatch.chdir(folder)
    yield folder
    if broken_things.listing(folder) != before:  # the test that did it has failed by that; the next finds it as it was
        shutil.rmtree(folder)
        folder.mkdir()
        broken_things.make_folder(folder)
