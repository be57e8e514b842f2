import pytest
import wrong_lines
from command_line import MODEL_FILE


@pytest.fixture
def folder(tmp_path):
    """A working directory with a file of models."""
    (tmp_path / "model.py").write_text(MODEL_FILE)
    return tmp_path


@pytest.fixture
def broken_folder(tmp_path, monkeypatch):
    """A working directory full of broken things."""
    wrong_lines.make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
