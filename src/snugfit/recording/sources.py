"""Where memory comes from: module, line of code and category, equal blocks in one row; at the peak, and at most.

These rows are what two estimates of a changing model are compared by (`report/regression.py`), so they say a line's text
too: its number moves with every line above it.
"""

from __future__ import annotations

import dataclasses
import linecache
import os
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from snugfit.recording.trace import ALLOC, FREE, RESIZE, Trace

if TYPE_CHECKING:
    from snugfit.recording.anatomy import LiveTensor


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Tensors that one place of the code made."""

    module: str
    """Dotted path of the module, `*` for the number of a repeated block; empty outside of all modules."""
    line: str
    """`file:line` of a person's code that made them in a forward pass; empty for what autograd or snugfit made."""
    code: str
    """The text of the line."""
    category: str
    """One of the categories of a trace."""
    tensors: int
    """How many there are at the peak."""
    size_bytes: int
    """Their bytes, as rounded by the allocator."""
    most_bytes: int
    """The most bytes that this place has alive at a time, at the peak or not, as they were asked for."""


Place = tuple[str, str, str]
"""Module, `file:line` and category."""
WORTH = 1000
"""Of a place that has nothing at the peak a row is kept if it once has this part of the peak."""


def sources_of(trace: Trace, tensors: Sequence[LiveTensor], blocks: Collection[str]) -> tuple[Source, ...]:
    """Returns where tensors come from, those that have most at the peak first; the bytes add up to theirs.

    `tensors`: what is alive at the peak.
    `blocks`: dotted paths of the repeated blocks.
    """
    names: dict[str, str] = {}

    def place(module: str, line: str, category: str) -> Place:
        name = names.get(module)
        if name is None:
            name = names[module] = _without_number(module, blocks)
        return name, line, category

    found: dict[Place, list[int]] = {}
    for tensor in tensors:
        found.setdefault(place(tensor.module, tensor.line, tensor.category), []).append(tensor.size_bytes)
    most = _most_alive(trace, [place(row.module, row.line, row.category) for row in trace.storages])
    least = sum(map(sum, found.values())) // WORTH
    for one, size in most.items():
        if size > least:
            found.setdefault(one, [])
    rows = (
        Source(
            module=module,
            line=short_line(line),
            code=text_of(line),
            category=category,
            tensors=len(sizes),
            size_bytes=sum(sizes),
            most_bytes=most.get((module, line, category), 0),
        )
        for (module, line, category), sizes in found.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.size_bytes, -row.most_bytes)))


def _most_alive(trace: Trace, places: Sequence[Place]) -> dict[Place, int]:
    """The most bytes that each place has alive on the device at a time; `places`: that of each storage."""
    alive, most = dict.fromkeys(places, 0), dict.fromkeys(places, 0)
    sizes = [row.nbytes if row.place == "device" else 0 for row in trace.storages]
    for kind, subject, value in zip(trace.kinds, trace.subjects, trace.values, strict=True):
        if kind not in (ALLOC, FREE, RESIZE) or not (sizes[subject] or kind == RESIZE):
            continue
        one = places[subject]
        if kind == ALLOC:
            alive[one] += sizes[subject]
        elif kind == FREE:
            alive[one] -= sizes[subject]
        elif trace.storages[subject].place == "device":
            alive[one] += value - sizes[subject]
            sizes[subject] = value
        most[one] = max(most[one], alive[one])
    return most


def short_line(line: str) -> str:
    """Returns `file:line` with the file as its package or the current folder has it, so that it means the same elsewhere."""
    path = re.split(r"[/\\](?:site|dist)-packages[/\\]", line)[-1]
    here = os.getcwd() + os.sep  # noqa: PTH109 (paths are compared as text)
    return path.removeprefix(here).replace("\\", "/")


def text_of(line: str) -> str:
    """Returns the text of `file:line`, or nothing where it cannot be read."""
    file, _, number = line.rpartition(":")
    linecache.checkcache(file)  # it may have been edited since an earlier estimate of this process
    return linecache.getline(file, int(number)).strip() if file else ""


def _without_number(module: str, blocks: Collection[str]) -> str:
    """The path of a module, with a star in place of the number of its block."""
    end = len(module)
    while end > 0:
        if module[:end] in blocks:
            start = module.rfind(".", 0, end) + 1
            return module[:start] + re.sub(r"\d+", "*", module[start:end]) + module[end:]
        end = module.rfind(".", 0, end)
    return module
