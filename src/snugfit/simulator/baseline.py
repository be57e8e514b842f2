"""An estimate held against an earlier one of the same model: whether it takes more memory, and which code makes it so.

Both are the documents of `snugfit estimate --json`. Predictions repeat to the byte, so that a tolerance is what one means to
allow, and no room for noise. Rows of `sources` are alike where module, category and text of the line are: its number moves
with every line above it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from snugfit.errors import InputError
from snugfit.json_files import read_json

COMPARED = ("peak_allocated_bytes", "total_bytes")
"""What must not grow. The second has segments of the allocator in it, which hide small growth and show it later."""
MOST = 8
"""How many places that grew are named."""
_MAKE = "Make it with `snugfit estimate ... --json > FILE`, on the branch that is merged into."


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """A place in the code that holds more at the peak than it did."""

    module: str
    """Dotted path of the module, `*` for the number of a repeated block; empty outside of all modules."""
    line: str
    """`file:line` as it is now; empty for what autograd or snugfit made."""
    code: str
    """Its text."""
    category: str
    """One of the categories of a trace."""
    before_bytes: int
    """What it held; 0 where it was not there."""
    now_bytes: int
    """What it holds."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One number of both estimates."""

    name: str
    """The key in the documents."""
    before_bytes: int
    """What it was."""
    now_bytes: int
    """What it is."""

    @property
    def share(self) -> float:
        """By how much it grew, of what it was."""
        return self.now_bytes / self.before_bytes - 1 if self.before_bytes else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two estimates of one model."""

    within: bool
    """Whether nothing grew by more than the tolerance."""
    tolerance: float
    """By which share memory may grow."""
    changes: tuple[Change, ...]
    """What is compared."""
    grew: tuple[Growth, ...]
    """Places that hold more, the one that grew most first; empty where nothing grew."""
    at_peak: bool
    """Whether they do so at the peak of tensors; else at another time, which the allocator's segments remember."""
    others_bytes: int
    """What all other places together hold more at the peak, or less."""
    also: tuple[str, ...]
    """What else differs, in sentences: it may be the cause."""


def read_baseline(path: Path) -> Mapping[str, Any]:
    """Reads the document of `snugfit estimate --json`; InputError where it is none."""
    named = f"baseline {str(path)!r}"
    document = read_json(path, named, instead=_MAKE, missing=_MAKE)
    if isinstance(document, Mapping):
        document = document.get("estimate", document)  # what `snugfit check --json` printed has it too
    if not isinstance(document, Mapping) or not document.keys() >= _READ:
        raise InputError(f"{named} holds no estimate that says where its bytes come from. {_MAKE}")
    try:  # whatever is read of it later is read here
        compare(document, document, 0.0)
        for size in ("size_bytes", "most_bytes"):
            _by_place(document, size)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise InputError(f"{named} was altered, or written by another version. {_MAKE}") from error
    return document


_READ = {
    "title",
    "devices",
    "sources",
    "batch_shape",
    "recipe",
    "torch_version",
    "peak_phase",
    "peak_module",
    *COMPARED,
}


def cards_in(baseline: Mapping[str, Any]) -> str:
    """Returns the cards of a baseline, as `--fits` takes them."""
    return ",".join(card["name"] for card in baseline["devices"])


def compare(baseline: Mapping[str, Any], now: Mapping[str, Any], tolerance: float) -> Comparison:
    """Compares two documents; InputError where they are of different models or cards."""
    titles = [os.path.normpath(document["title"]) for document in (baseline, now)]
    if titles[0] != titles[1]:
        raise InputError(f"the baseline is of {baseline['title']}, and this is {now['title']}. {_MAKE}")
    if cards_in(baseline) != cards_in(now):
        raise InputError(
            f"the baseline is of {cards_in(baseline)}, and this of {cards_in(now)}: cards are compared with themselves. "
            f"Give --fits {cards_in(baseline)}, or leave it out."
        )
    changes = tuple(Change(name=name, before_bytes=baseline[name], now_bytes=now[name]) for name in COMPARED)
    grown = [change.now_bytes > change.before_bytes for change in changes]
    # Where tensors at the peak did not grow, what has more at another time makes the segments grow.
    size = "size_bytes" if grown[0] else "most_bytes"
    grew: list[Growth] = []
    if any(grown):
        grew = sorted(_grown(baseline, now, size), key=lambda row: row.before_bytes - row.now_bytes)[:MOST]
    named = sum(row.now_bytes - row.before_bytes for row in grew)
    return Comparison(
        within=all(change.now_bytes <= change.before_bytes * (1 + tolerance) for change in changes),
        tolerance=tolerance,
        changes=changes,
        grew=tuple(grew),
        others_bytes=changes[0].now_bytes - changes[0].before_bytes - named if grown[0] else 0,
        at_peak=grown[0],
        also=tuple(_also(baseline, now)),
    )


def _grown(baseline: Mapping[str, Any], now: Mapping[str, Any], size_of: str) -> Iterator[Growth]:
    before, after = _by_place(baseline, size_of), _by_place(now, size_of)
    for (module, category, code), (size, line) in after.items():
        was = before.get((module, category, code), (0, ""))[0]
        if size > was:
            yield Growth(module=module, line=line, code=code, category=category, before_bytes=was, now_bytes=size)


def _by_place(document: Mapping[str, Any], size_of: str) -> dict[tuple[str, str, str], tuple[int, str]]:
    """Bytes and line of each place, which is a module, a category and the text of a line."""
    found: dict[tuple[str, str, str], tuple[int, str]] = {}
    for row in document["sources"]:
        place = row["module"], row["category"], row["code"]
        found[place] = found.get(place, (0, ""))[0] + row[size_of], row["line"]
    return found


def _also(baseline: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    before, after = (
        {"batch": one["batch_shape"], "torch": one["torch_version"], "gpus": one.get("gpus"), **(one["recipe"] or {})}
        for one in (baseline, now)
    )
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield f"{name} was {before.get(name)} and is {after.get(name)}"
    was, here = (" in ".join(filter(None, (one["peak_phase"], one["peak_module"]))) for one in (baseline, now))
    if was != here:
        yield f"the peak was {was} and is {here}"
