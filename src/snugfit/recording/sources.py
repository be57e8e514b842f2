"""What is alive at the peak by where it comes from: module, line of code and category, equal blocks in one row.

These rows are what two estimates of a changing model are compared by (`report/regression.py`), so they say a line's text
too: its number moves with every line above it.
"""

from __future__ import annotations

import dataclasses
import linecache
import os
import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snugfit.recording.anatomy import LiveTensor


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Tensors at the peak that one place of the code made."""

    module: str
    """Dotted path of the module, `*` for the number of a repeated block; empty outside of all modules."""
    line: str
    """`file:line` of a person's code that made them in a forward pass; empty for what autograd or snugfit made."""
    code: str
    """The text of the line."""
    category: str
    """One of the categories of a trace."""
    tensors: int
    """How many there are."""
    size_bytes: int
    """Their bytes, as rounded by the allocator."""


def sources_of(tensors: Iterable[LiveTensor], blocks: Collection[str]) -> tuple[Source, ...]:
    """Returns where tensors come from, the largest first; the bytes add up to theirs.

    `blocks`: dotted paths of the repeated blocks.
    """
    found: dict[tuple[str, str, str], list[int]] = {}
    names: dict[str, str] = {}
    for tensor in tensors:
        name = names.get(tensor.module)
        if name is None:
            name = names[tensor.module] = _without_number(tensor.module, blocks)
        found.setdefault((name, tensor.line, tensor.category), []).append(tensor.size_bytes)
    rows = (
        Source(
            module=module,
            line=short_line(line),
            code=text_of(line),
            category=category,
            tensors=len(sizes),
            size_bytes=sum(sizes),
        )
        for (module, line, category), sizes in found.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.size_bytes))


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
