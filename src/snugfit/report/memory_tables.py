"""What lives at a peak, predicted or measured: by category, by tensor, and blocks that are alike as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from snugfit.report.console import table
from snugfit.report.words import short_operator
from snugfit.units import format_bytes

if TYPE_CHECKING:
    from snugfit.recording.anatomy import LiveTensor

T = TypeVar("T", bound=Any)
_BAR = 24


def anatomy_table(by_category: Mapping[str, int], of_experts: Mapping[str, int]) -> list[str]:
    """Returns the table of categories; `of_experts`: the part that a mixture's experts have."""
    total = sum(by_category.values())
    rows = [
        (
            category.replace("_", " "),
            format_bytes(size),
            f"{size / total:.1%}",
            "#" * max(1, round(_BAR * size / total)),
        )
        for category, size in _largest_first(by_category)
        if size
    ]
    experts = sum(of_experts.values())
    if experts:
        rows.append(
            ("  of experts", format_bytes(experts), f"{experts / total:.1%}", f"({sizes_in_words(of_experts)})")
        )
    rows.append(("sum", format_bytes(total), "", ""))
    return ["What lives at the peak", *table(rows, right=(1, 2))]


def largest_table(tensors: Sequence[LiveTensor]) -> list[str]:
    """Returns the table of the largest tensors; nothing where there are none."""
    rows: list[tuple[str, ...]] = [
        (
            format_bytes(tensor.size_bytes),
            tensor.category.replace("_", " "),
            short_operator(tensor.operator),
            tensor.module or "-",
            tensor.line or "-",
        )
        for tensor in tensors
    ]
    titles: tuple[str, ...] = ("size", "category", "operator", "module", "line")
    if not any(tensor.line for tensor in tensors):  # of a real run that was watched, nobody knows
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    return ["Largest tensors alive at the peak", *table([titles, *rows], right=(0,))] if rows else []


def sizes_in_words(by_category: Mapping[str, int]) -> str:
    """Returns bytes by category in one line, the largest first."""
    return ", ".join(f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in _largest_first(by_category))


def grouped(blocks: Sequence[T], alike: Callable[[T, T], bool]) -> Iterator[tuple[str, T]]:
    """Yields blocks with their names; consecutive equal ones as one, under the name of the first."""
    runs: list[list[T]] = []
    for block in blocks:
        if runs and alike(runs[-1][0], block):
            runs[-1].append(block)
        else:
            runs.append([block])
    for run in runs:
        first, last = run[0].name, run[-1].name.rpartition(".")[2]
        yield first if len(run) == 1 else f"{first} to {last} ({len(run)})", run[0]


def _largest_first(by_category: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(by_category.items(), key=lambda item: -item[1])
