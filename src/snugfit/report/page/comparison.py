"""Two documents on one axis: their numbers, frontiers, timelines, and what differs by module and category."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any

from snugfit.report.page.documents import beside
from snugfit.report.page.sections import Section, table
from snugfit.units import format_bytes

_WORTH = 1000
"""A place has a row of its own where it differs by this part of the peak."""


def comparison(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Section]:
    """Returns the sections in which two shown documents stand beside each other; none where they share nothing.

    `first`, `second`: as `shown` made them.
    """
    one, other = first["sections"], second["sections"]
    found: dict[str, Section | None] = {"facts": _facts(one, other), "measured": _measured(one, other)}
    if "dial" in one and "dial" in other:
        found["frontiers"] = _frontiers(first, second)
    if "timeline" in one and "timeline" in other:
        found["timelines"] = _timelines(one["timeline"], other["timeline"])
    if "anatomy" in one and "anatomy" in other:
        found["differences"] = _differences(one["anatomy"], other["anatomy"])
    return {name: section for name, section in found.items() if section}


def _frontiers(first: Mapping[str, Any], second: Mapping[str, Any]) -> Section:
    rows = [
        (letter, one["from"], one["step"], one["recipe"])
        for letter, document in (("A", first), ("B", second))
        for one in document["sections"]["dial"]["answers"]
    ]
    return {"table": table(("", "from a budget of", "a step", "recipe"), rows, right=(1, 2))}


def _facts(one: Mapping[str, Any], other: Mapping[str, Any]) -> Section | None:
    """What is said of both in short."""
    mine, theirs = (dict(found["facts"]["rows"]) if "facts" in found else {} for found in (one, other))
    rows = [(name, mine[name], theirs[name]) for name in mine if name in theirs]
    return {"table": table(("", "A", "B"), rows)} if rows else None


def _measured(one: Mapping[str, Any], other: Mapping[str, Any]) -> Section | None:
    """Rows of the same name: what one document predicts beside what the other measured, or both documents' own."""
    mine, theirs = (
        {row["name"]: row for row in (found.get("rungs") or found.get("measured") or {"rows": ()})["rows"]}
        for found in (one, other)
    )
    shared = [name for name in mine if name in theirs]
    pairs = []
    for name in shared:
        of_both = (mine[name], theirs[name])
        guess = next((row["predicted"] for row in of_both if row["measured"] is None), None)
        truth = next((row["measured"] for row in of_both if row["measured"] is not None), None)
        pairs.append({"name": name, "predicted": guess, "measured": truth})
    if any(None not in (pair["predicted"], pair["measured"]) for pair in pairs):
        return beside(pairs)
    both = [(name, *(_most(rows[name]) for rows in (mine, theirs))) for name in shared]
    cells = [(name, format_bytes(a), format_bytes(b), _change(a, b)) for name, a, b in both]
    rows = [{"name": name, "a": a, "b": b} for name, a, b in both]
    return {"rows": rows, "table": table(("", "A", "B", "B less A"), cells, right=(1, 2, 3))} if rows else None


def _most(row: Mapping[str, Any]) -> int:
    found: int = row["measured"] if row["measured"] is not None else row["predicted"] or 0
    return found


def _change(before: int, after: int) -> str:
    share = f" ({after / before - 1:+.1%})" if before else ""
    return f"{'+' if after >= before else ''}{format_bytes(after - before)}{share}"


def _timelines(one: Section, other: Section) -> Section:
    """Both runs, step for step: the second one's steps are stretched to the first one's."""
    begins, theirs = _begins(one), _begins(other)
    shared = [step for step in begins if step in theirs]
    before, after = (_bounds(found, shared, drawn["end"]) for found, drawn in ((theirs, other), (begins, one)))
    places = [_moved(event, before, after) for event in other["events"]]
    cells = []
    for step in shared:
        a, b = _in_step(one, step), _in_step(other, step)
        cells.append((f"step {step + 1}" if step >= 0 else "before", format_bytes(a), format_bytes(b), _change(a, b)))
    return {
        "b_events": [round(place, 1) for place in places],
        "table": table(("", "A", "B", "B less A"), cells, (1, 2, 3)),
    }


def _stages(timeline: Section) -> list[int]:
    """The step at each point; -1 while the model is built."""
    build = ("build", "load")
    return [-1 if phase in build else step for phase, step in zip(timeline["phase"], timeline["step"], strict=True)]


def _begins(timeline: Section) -> dict[int, int]:
    begins: dict[int, int] = {}
    for step, event in zip(_stages(timeline), timeline["events"], strict=True):
        begins.setdefault(step, event)
    return begins


def _bounds(begins: Mapping[int, int], shared: Sequence[int], end: int) -> list[int]:
    """Where the steps that both have begin, and where the last of them ends."""
    if not shared:
        return [0, end]
    later = [event for step, event in begins.items() if step > shared[-1]]
    return [*(begins[step] for step in shared), min([*later, end])]


def _in_step(timeline: Section, step: int) -> int:
    return max(int(total) for total, at in zip(timeline["total"], _stages(timeline), strict=True) if at == step)


def _moved(event: float, before: list[int], after: list[int]) -> float:
    at = min(max(bisect.bisect_right(before, event) - 1, 0), len(before) - 2)
    share = (event - before[at]) / max(before[at + 1] - before[at], 1)
    return after[at] + share * (after[at + 1] - after[at])


def _differences(one: Section, other: Section) -> Section:
    """Bytes at the peak by module and category, what differs most first."""
    sums: list[dict[tuple[str, str], int]] = []
    for found in (one, other):
        by_place: dict[tuple[str, str], int] = {}
        for row in found["rows"]:
            place = (row["category"], row["module"])
            by_place[place] = by_place.get(place, 0) + row["bytes"]
        sums.append(by_place)
    mine, theirs = sums
    change = {place: theirs.get(place, 0) - mine.get(place, 0) for place in {*mine, *theirs}}
    worth = max(one["peak_bytes"], other["peak_bytes"]) / _WORTH
    differing = [place for place in change if abs(change[place]) >= worth]
    places = sorted(differing, key=lambda place: (-abs(change[place]), place))
    rows = [(*place, mine.get(place, 0), theirs.get(place, 0)) for place in places]
    all_a, all_b = one["peak_bytes"], other["peak_bytes"]
    left = (all_a - sum(a for *_, a, _ in rows), all_b - sum(b for *_, b in rows))
    cells = [
        (name.replace("_", " "), module, format_bytes(a), format_bytes(b), _change(a, b))
        for name, module, a, b in (
            ("all", "", all_a, all_b),
            *rows,
            ("the rest", f"less than {1 / _WORTH:.1%} of the peak each", *left),
        )
    ]
    categories = list(dict.fromkeys(category for category, _ in [*mine, *theirs]))
    totals = [
        {"name": name, **{side: _of(found, name) for side, found in (("a", mine), ("b", theirs))}}
        for name in categories
    ]
    return {"rows": totals, "table": table(("category", "module", "A", "B", "B less A"), cells, right=(2, 3, 4))}


def _of(by_place: Mapping[tuple[str, str], int], category: str) -> int:
    return sum(found for (name, _), found in by_place.items() if name == category)
