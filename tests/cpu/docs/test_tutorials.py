"""The quickstart and the tutorials do what they say: their code is run, and prints what they show."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "docs" / "quickstart.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]


def labels(text):
    """The words that lines begin with: the names of what is printed, whatever the numbers are here."""
    return set(re.findall(r"^ {0,2}([A-Za-z]+)\b", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_written(page, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(tmp_path)
    _, outputs = importlib.import_module("benchmarks.tutorials").run(page)
    assert outputs
    for shown, printed in outputs:
        assert printed.strip() and labels(shown) <= labels(printed)
