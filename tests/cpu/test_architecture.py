"""docs/architecture.md sends people to files and names that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "snugfit"
QUESTIONS = ("batch cut", "checkpointed block recorded", "new optimizer", "memory runs out")


def answers():
    table = PAGE.partition("## Where to look")[2].partition("\n## ")[0]
    return [line.split("|")[1:3] for line in table.splitlines() if line.startswith("|")][2:]


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_in_one_hop(question):
    (answer,) = [answer for asked, answer in answers() if question in asked]
    named = re.findall(r"`([\w/]+\.py)` \(`(\w+)`\)", answer)
    assert named
    for path, name in named:
        assert re.search(rf"^(?:class |    def |def |){name}\b", (SOURCE / path).read_text(), re.MULTILINE), (
            path,
            name,
        )


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:\w+/)*\w+\.py)`", PAGE))))
def test_a_named_file_exists(path):
    if path.startswith("techniques/x/"):  # stands for any technique
        path = path.replace("/x/", "/muon/")
    assert list(SOURCE.rglob(path)) or (ROOT / path).exists()
