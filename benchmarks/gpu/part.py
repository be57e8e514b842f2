"""What a part of the ground truth is: a list of cases, how one is predicted and how it is measured. Imports no torch."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snugfit.workers.pool import Pool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where rows are measured."""

    kind: str
    """`cuda` or `cpu`."""
    card: str
    """The card's name as torch prints it, or `cpu`."""
    torch_version: str
    """Version of torch, without the build."""
    capability: tuple[int, int] | None = None
    """Compute capability; None on a CPU."""
    memory_bytes: int | None = None
    """Memory of the card; None on a CPU."""
    bf16: bool = True
    """Whether it computes in bf16 by itself."""

    @property
    def folder(self) -> str:
        """Name of the folder its results are in."""
        card = re.sub(r"[^a-z0-9]+", "-", self.card.lower()).strip("-")
        return f"{card}-torch{self.torch_version}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One row that is to be measured."""

    name: str
    """Its name, unique in its part."""
    settings: dict[str, Any]
    """What is run, as plain data: a row whose settings changed is measured again."""
    half: str | None = None
    """`tuning` or `validation`, where rows are used to improve predictions."""
    packages: tuple[str, ...] = ()
    """Packages it needs besides torch."""
    left_out: str = ""
    """Why it is not measured here; empty when it is."""


Measure = Callable[[str, Place], dict[str, Any]]
Predict = Callable[[str, Place, "Pool"], dict[str, Any]]
Read = Callable[[dict[str, Any]], dict[str, Any]]
"""From a command's document to `predicted` and `measured` of a row."""
Command = Callable[[str, Place], "tuple[list[str], Read] | None"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One question to the hardware."""

    name: str
    """Name of the part and of its results."""
    title: str
    """What it shows."""
    cases: Callable[[Place], Sequence[Case]]
    """All cases, the most informative first."""
    measure: Measure
    """Measures the case of a name, in a process of its own."""
    command: Command | None = None
    """Words of a `snugfit` command whose JSON document is the whole row, prediction included, and how the document is read;
    None for a case that no command runs: then `measure` and `predict` do."""
    predict: Predict | None = None
    """Predicts the case of a name, in the harness's workers; None where measuring includes it, or nothing is predicted."""
    predict_again: Callable[[str, dict[str, Any], Place], dict[str, Any]] | None = None
    """Makes the predictions anew that stand among what was measured of a case; None where `predict` makes all."""
    line: Callable[[dict[str, Any]], str]
    """A row in one line for the console."""
    first: int
    """Cases that are worth measuring before any other part's rest."""
    timed: bool
    """Whether seconds are the point, so that nothing may run beside it."""
    limit_seconds: float
    """Time after which a row is given up."""


VALIDATION, TUNING = "validation", "tuning"


def half_of(name: str) -> str:
    """Returns the half that a case belongs to: decided by its name alone, so never by its result.

    Args:
        name: The case's name.

    Returns:
        `validation` for half of all names, else `tuning`.
    """
    return VALIDATION if hashlib.sha256(name.encode()).digest()[0] % 2 else TUNING


def spread(cases: Sequence[Case], features: Callable[[Case], Sequence[str]]) -> list[Case]:
    """Orders cases so that any beginning of the list shows as much of the whole as it can.

    Args:
        cases: The cases.
        features: What a case shows: its model, its techniques.

    Returns:
        The same cases: each next one is that whose features were shown the fewest times; the first of equals.
    """
    left, seen, ordered = list(cases), dict[str, int](), list[Case]()
    while left:
        best = max(left, key=lambda case: sum(1.0 / (1 + seen.get(one, 0)) ** 2 for one in features(case)))
        left.remove(best)
        ordered.append(best)
        for one in features(best):
            seen[one] = seen.get(one, 0) + 1
    return ordered


def percent(predicted: float | None, measured: float | None) -> str:
    """Returns the difference of a prediction in percent, for a console line.

    Args:
        predicted: The prediction, or None.
        measured: What it is compared with, or None.

    Returns:
        Such as `+1.23 %`; `-` where one of them is missing.
    """
    if not predicted or not measured:
        return "-"
    return f"{100 * (predicted / measured - 1):+.2f} %"
