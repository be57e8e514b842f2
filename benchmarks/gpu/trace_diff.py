"""Compares what operators really took with what was predicted: pure functions over lists of `Taken`.

Blocks are matched by step, phase, operator and size; what is left is matched once more by step, phase and size alone (the
same memory under another operator's name). What then remains was not predicted, or did not happen. Memory taken and given
back inside an operator is matched in the same way, apart; where it was predicted in another size, the difference counts.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.gpu.operator_events import Taken

MADE = "(made by the caller)"
_OUTSIDE_THE_STEP = ("build", "load", "data", "")


@dataclasses.dataclass
class OperatorDifference:
    """What is predicted wrongly of one operator, over all its runs."""

    operator: str
    """The operator."""
    kind: str
    """`kept` (still there at its end) or `inside` (taken and given back)."""
    not_predicted: int = 0
    """Blocks that were taken and not predicted."""
    not_predicted_bytes: int = 0
    """Their bytes."""
    not_happened: int = 0
    """Blocks that were predicted and not taken."""
    not_happened_bytes: int = 0
    """Their bytes."""
    example: str = ""
    """The largest of them: its bytes, step, phase and module."""

    @property
    def bytes(self) -> int:
        """What it is ranked by."""
        return self.not_predicted_bytes + self.not_happened_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Two runs compared."""

    real_blocks: int
    """Blocks that were taken."""
    real_bytes: int
    """Their bytes."""
    matched_bytes: int
    """The part that was predicted, under this operator or another."""
    renamed_bytes: int
    """The part that was predicted under another operator's name."""
    operators: tuple[OperatorDifference, ...]
    """What differs, the most bytes first."""

    def to_plain(self, most: int = 15) -> dict[str, Any]:
        """Returns it as plain data.

        Args:
            most: Operators that are listed at most.
        """
        shown = [{**dataclasses.asdict(one), "bytes": one.bytes} for one in self.operators[:most]]
        return {
            "blocks": self.real_blocks,
            "block_bytes": self.real_bytes,
            "matched_bytes": self.matched_bytes,
            "renamed_bytes": self.renamed_bytes,
            "not_predicted_bytes": sum(one.not_predicted_bytes for one in self.operators),
            "not_happened_bytes": sum(one.not_happened_bytes for one in self.operators),
            "operators": shown,
            "operators_differing": len(self.operators),
        }


Key = tuple[int, str, str, str, int]
"""Step, phase, kind (`kept` or `inside`), operator, bytes."""


def compare(real: Sequence[Taken], predicted: Sequence[Taken]) -> Difference:
    """Compares two runs.

    Args:
        real: What operators took.
        predicted: What they were predicted to take.

    Returns:
        What matches and what does not, by operator.
    """
    taken, foreseen = _blocks(real), _blocks(predicted)
    not_predicted, not_happened = taken - foreseen, foreseen - taken
    renamed = _match_without_name(not_predicted, not_happened)
    where = {**_places(predicted), **_places(real)}
    _leave_difference(not_predicted, not_happened, where)
    found: dict[tuple[str, str], OperatorDifference] = {}
    largest: dict[tuple[str, str], int] = {}
    for left, happened in ((not_predicted, True), (not_happened, False)):
        for key, count in left.items():
            if not count:
                continue
            step, phase, kind, operator, nbytes = key
            row = found.setdefault((operator, kind), OperatorDifference(operator, kind))
            if happened:
                row.not_predicted += count
                row.not_predicted_bytes += count * nbytes
            else:
                row.not_happened += count
                row.not_happened_bytes += count * nbytes
            if nbytes > largest.get((operator, kind), -1):
                largest[(operator, kind)] = nbytes
                what = "not predicted" if happened else "predicted only"
                module = f", {where[key]}" if where[key] else ""
                row.example = f"{nbytes} bytes {what}, step {step} {phase}{module}"
    total = sum(key[4] * count for key, count in taken.items())
    missed = sum(row.not_predicted_bytes for row in found.values())
    return Difference(
        real_blocks=taken.total(),
        real_bytes=total,
        matched_bytes=total - missed,
        renamed_bytes=renamed,
        operators=tuple(sorted(found.values(), key=lambda row: -row.bytes)),
    )


def _blocks(taken: Iterable[Taken]) -> Counter[Key]:
    found: Counter[Key] = Counter()
    for row in taken:
        operator = MADE if row.phase in _OUTSIDE_THE_STEP else row.operator
        for nbytes in row.kept:
            found[(row.step, row.phase, "kept", operator, nbytes)] += 1
        if row.inside_bytes and operator is not MADE:
            found[(row.step, row.phase, "inside", operator, row.inside_bytes)] += 1
    return found


def _places(taken: Iterable[Taken]) -> dict[Key, str]:
    """The first module in which each block was taken."""
    found: dict[Key, str] = {}
    for row in taken:
        operator = MADE if row.phase in _OUTSIDE_THE_STEP else row.operator
        for nbytes in row.kept:
            found.setdefault((row.step, row.phase, "kept", operator, nbytes), row.module)
        if row.inside_bytes:
            found.setdefault((row.step, row.phase, "inside", operator, row.inside_bytes), row.module)
    return found


def _match_without_name(not_predicted: Counter[Key], not_happened: Counter[Key]) -> int:
    """Takes off what differs in the operator's name alone; returns its bytes."""
    by_size: dict[tuple[int, str, str, int], list[Key]] = {}
    for key, count in not_happened.items():
        if count:
            by_size.setdefault((*key[:3], key[4]), []).append(key)
    renamed = 0
    for key in list(not_predicted):
        for other in by_size.get((*key[:3], key[4]), ()):
            same = min(not_predicted[key], not_happened[other])
            not_predicted[key] -= same
            not_happened[other] -= same
            renamed += same * key[4]
    return renamed


def _leave_difference(not_predicted: Counter[Key], not_happened: Counter[Key], where: dict[Key, str]) -> None:
    """Pairs what an operator took inside with what it was predicted to take, the largest first; leaves their differences."""
    expected: dict[tuple[int, str, str, str], list[Key]] = {}
    for key in sorted(not_happened.elements(), key=lambda key: -key[4]):
        if key[2] == "inside":
            expected.setdefault(key[:4], []).append(key)
    for key in sorted(not_predicted.elements(), key=lambda key: -key[4]):
        others = expected.get(key[:4])
        if not others:
            continue
        other = others.pop(0)
        not_predicted[key] -= 1
        not_happened[other] -= 1
        left: Key = (*key[:4], abs(key[4] - other[4]))
        (not_predicted if key[4] > other[4] else not_happened)[left] += 1
        where.setdefault(left, where[key])
