"""Command lines that people get wrong (`wrong_lines.txt`), and one check of what snugfit answers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from broken_things import listing

from snugfit.cli import main


class Line(NamedTuple):
    """A wrong command line."""

    words: str
    """What is typed after `snugfit`."""
    parts: tuple[str, ...]
    """What the message must have, whatever its case."""


def wrong(words: str, *parts: str) -> Line:
    return Line(words, parts)


def table() -> Iterator[Line]:
    """Yields the lines of `wrong_lines.txt`, where it is said how they are written."""
    beginning = ""
    for row in (Path(__file__).parent / "wrong_lines.txt").read_text(encoding="utf-8").splitlines():
        if row.endswith(" ..."):
            beginning = row[:-3]
        elif row and not row.startswith("#"):
            words, *parts = row.strip().split(" | ")
            assert parts, f"what must the message of {row!r} have?"
            yield from _each(beginning + words if row.startswith(" ") else words, parts)


def _each(words: str, parts: list[str]) -> Iterator[Line]:
    values = re.search(r"\{(.*)\}", words)
    for value in re.findall(r"'[^']*'|\S+", values[1]) if values else [""]:
        seen = "".join(shlex.split(value))
        line = words.replace(values[0], value) if values else words
        yield wrong(line, *(part.replace("{}", seen) for part in parts))


def check(line: Line, folder: Path, capsys) -> None:
    """Types a line, and checks the answer."""
    before = listing(folder)
    capsys.readouterr()
    code = main(shlex.split(line.words))
    out, err = capsys.readouterr()
    assert "Traceback" not in err, err
    assert code == 2, f"exit code {code}\n{out}{err}"
    for part in line.parts:
        assert part.lower() in err.lower(), f"{part!r} is not in: {err}"
    assert any(text.startswith("snugfit: ") for text in err.splitlines()), err
    assert out == "", out
    assert listing(folder) == before
