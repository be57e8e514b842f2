"""The documentation as a site: what `make site`, which checks the links between pages, does not see."""

import importlib
import re
from pathlib import Path

import pytest
import yaml

import snugfit

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def listed(entries):
    """The pages of a part of the navigation."""
    for entry in entries:
        for found in [entry] if isinstance(entry, str) else entry.values():
            yield from [found] if isinstance(found, str) else listed(found)


def headings(page):
    """Anchors of a page, as GitHub and the site name them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_in_the_navigation_once():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings = yaml.load(text, yaml.BaseLoader)  # a safe one refuses the call of a function that one of them is
    assert sorted(listed(settings["nav"])) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", sorted(page.name for page in ROOT.glob("*.md")))
def test_links_from_outside_the_site_lead_somewhere(page):
    for target in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        if not re.match(r"[a-z]+:", target):
            assert (ROOT / (file or page)).exists(), target
            assert not anchor or anchor in headings(ROOT / (file or page)), target


def test_the_page_of_the_command_line_is_that_of_the_parsers(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    made = importlib.import_module("benchmarks.cli_page").cli_page()
    assert (DOCS / "reference" / "cli.md").read_text(encoding="utf-8") == made, "make docs writes it anew"


def test_the_page_of_python_has_every_public_name():
    shown = re.findall(r"^::: snugfit\.(\w+)$", (DOCS / "reference" / "python.md").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(snugfit.__all__)
    assert all(hasattr(snugfit, name) for name in shown)
