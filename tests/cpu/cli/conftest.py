import pytest
from command_line import MODEL_FILE


@pytest.fixture
def folder(tmp_path):
    """A working directory with a file of models."""
    (tmp_path / "model.py").write_text(MODEL_FILE)
    return tmp_path
