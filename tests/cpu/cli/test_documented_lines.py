"""Every command line in the README and the docs is one that the command takes."""

import re
import shlex
from pathlib import Path

import pytest

from snugfit.cli import COMMANDS, main, parse

ROOT = Path(__file__).parents[3]
PAGES = [page for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if "log" not in page.parts]
BLOCKS = re.compile(r"^```[a-z]*\n.*?^```|(?:^ {4}[^\n]*\n)+", re.MULTILINE | re.DOTALL)
PRINT_ONLY = ("devices", "techniques")
"""Commands that need no model: their lines are run, the others' are read as they would be before a run."""
NOT_HERE = {"local", "my-machine.yaml"}
"""A GPU and a file that the lines speak of."""


def whole_lines(page):
    """Lines of code blocks, without what a shell takes away, and without those that leave something out."""
    for block in BLOCKS.finditer(page.read_text().replace("\\\n", " ")):
        for line in block[0].splitlines():
            found = re.match(r"\s*(?:\$ )?snugfit ([a-z]+(?: .*)?)$", line)
            if found and "..." not in line:
                yield re.split(r"\s+[|#>]|\s&&|\s{2,}\(", found[1])[0]


def named_in_sentences(page):
    """Commands with some of their options, as sentences name them."""
    return re.findall(r"`snugfit ([a-z][^`]*)`", BLOCKS.sub("", page.read_text()).replace("\n", " "))


def of_all_pages(lines):
    return [pytest.param(line, id=f"{page.name}-{line[:50]}") for page in PAGES for line in dict.fromkeys(lines(page))]


@pytest.mark.parametrize("line", of_all_pages(whole_lines))
def test_a_line_to_copy_is_taken(line, capsys):
    words = shlex.split(line)
    if words[0] in PRINT_ONLY and not NOT_HERE & {*words}:
        assert main(words) == 0 and capsys.readouterr().out
    else:
        assert parse(words).run.__module__ == f"snugfit.cli.{words[0]}"


@pytest.mark.parametrize("line", of_all_pages(named_in_sentences))
def test_what_a_sentence_names_exists(line, capsys):
    command, *words = line.split()
    assert command in COMMANDS
    with pytest.raises(SystemExit):
        main([command, "--help"])
    told = capsys.readouterr().out
    assert [word for word in words if word.startswith("-") and not re.search(rf"{word}\b", told)] == []


def test_every_command_is_shown_somewhere():
    assert {line.split()[0] for page in PAGES for line in whole_lines(page)} >= set(COMMANDS)
