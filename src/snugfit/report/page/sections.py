"""The parts that pages of several kinds of document have: facts, anatomy, timeline, cards, GPUs, processes.

Each function takes a document as it was read and returns a section, or None where the document holds nothing for it. A
section has the numbers of its picture and, under `table`, the same as text. What is not as a document of ours has it raises
`KeyError`, `TypeError` or `ValueError`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from snugfit.devices import DEVICES
from snugfit.recipe import Recipe
from snugfit.recording.anatomy import OUTSIDE
from snugfit.report.timeline import COLOURS
from snugfit.report.words import recipe_in_words, short_operator
from snugfit.units import format_bytes, format_seconds

Section = dict[str, Any]
_LARGE = 2**53
"""From here on a script's numbers have gaps; no memory has so many bytes."""
_MOST_ROWS = 300
"""Places of an anatomy that a page has one by one."""
_MOST_BANDS = 60
"""Phases of a timeline that its table has."""


def number(value: Any) -> Any:
    """Returns what must be a number that a script can hold, or None."""
    if value is not None and (type(value) not in (int, float) or not abs(value) < _LARGE):
        raise TypeError(f"{value!r} is no number")
    return value


def size(value: Any) -> str:
    """Returns bytes in words; a dash for None."""
    return "-" if number(value) is None else format_bytes(value)


def seconds(value: Any) -> str:
    """Returns a duration in words; a dash for None."""
    return "-" if number(value) is None else format_seconds(value)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> dict[str, Any]:
    """Returns a table of text; `right`: columns of numbers."""
    return {"columns": list(columns), "rows": [list(map(str, row)) for row in rows], "right": list(right)}


def recipe_of(given: Mapping[str, Any] | None) -> str:
    """Returns the recipe of a document in words."""
    return recipe_in_words(None if given is None else Recipe.from_mapping(given))


def fidelity_in_words(given: Mapping[str, Any] | None) -> str:
    """Returns the fidelity of a document in words; empty for None."""
    if given is None:
        return ""
    reasons = [f"{name} ({level}): {why.rstrip('.')}" for name, (level, why) in given["reasons"].items()]
    return "; ".join([str(given["level"]), *reasons])


def where_in_words(found: Mapping[str, Any]) -> str:
    """Returns where the peak of an estimate or a profile falls."""
    step, steps = found.get("peak_step"), found.get("steps")
    behind = step is not None and steps is not None and number(step) >= number(steps)
    place = "" if step is None else " behind the steps" if behind else f" of step {number(step) + 1}"
    module = f" in {found['peak_module']}" if found["peak_module"] else ""
    return f"{found['peak_phase'] or 'no phase'}{place}: {short_operator(found['peak_operator'])}{module}"


def anatomy(found: Mapping[str, Any]) -> Section | None:
    """Returns what lives at the peak, by module and category."""
    if not found.get("sources"):
        return None
    rows: list[dict[str, Any]] = []
    rest = dict.fromkeys(COLOURS, 0)
    for row in sorted(found["sources"], key=lambda row: -number(row["size_bytes"])):
        if row["size_bytes"] and len(rows) < _MOST_ROWS:
            place = {
                "module": str(row["module"]) or OUTSIDE,
                "category": str(row["category"]),
                "line": str(row["line"]),
            }
            rows.append({**place, "bytes": row["size_bytes"], "tensors": number(row["tensors"])})
        else:
            rest[row["category"]] += row["size_bytes"]
    for category, left in rest.items():
        if left:
            rows.append({"module": "(the rest)", "category": category, "line": "", "bytes": left, "tensors": None})
    total = number(found["peak_allocated_bytes"])
    cells = (
        (size(row["bytes"]), f"{row['bytes'] / total:.1%}", row["category"].replace("_", " "), row["module"],
         row["line"] or "-")
        for row in rows
    )  # fmt: skip
    return {
        "peak_bytes": total,
        "where": where_in_words(found),
        "rows": rows,
        "table": table(("size", "share", "category", "module", "line"), cells, right=(0, 1)),
    }


def largest(found: Mapping[str, Any]) -> Section | None:
    """Returns the largest tensors at the peak."""
    rows = found.get("largest") or found.get("largest_tensors")
    cells = (
        (size(row["size_bytes"]), row["category"].replace("_", " "), short_operator(row["operator"]), row["module"] or "-",
         row.get("line") or "-")
        for row in rows or ()
    )  # fmt: skip
    return {"table": table(("size", "category", "operator", "module", "line"), cells, right=(0,))} if rows else None


def timeline(found: Mapping[str, Any]) -> Section | None:
    """Returns memory over the run."""
    drawn = found.get("timeline")
    if not drawn or not drawn["events"]:
        return None
    columns = {name: [number(value) for value in sizes] for name, sizes in drawn["bytes_by_category"].items()}
    totals = list(map(sum, zip(*columns.values(), strict=True)))
    names = {name: [str(drawn[f"{name}s"][index]) for index in drawn[name]] for name in ("phase", "operator", "module")}
    steps = [number(step) for step in drawn["step"]]
    points = range(len(drawn["events"]))
    if {len(totals), *map(len, names.values()), len(steps)} != {len(points)}:
        raise ValueError("the columns of its timeline are not equally long")
    if drawn["peak"] not in points:
        raise ValueError("the peak of its timeline is none of its points")
    bands = [list(group) for _, group in itertools.groupby(points, key=lambda at: (names["phase"][at], steps[at]))]
    highest = sorted(bands, key=lambda band: -max(totals[at] for at in band))[:_MOST_BANDS]
    cells = []
    for band in (band for band in bands if band in highest):
        top = max(band, key=totals.__getitem__)
        operator, module = short_operator(names["operator"][top]), names["module"][top] or "-"
        cells.append((str(steps[top] + 1), names["phase"][top], size(totals[top]), operator, module))
    return {
        "end": number(drawn["end"]),
        "peak": number(drawn["peak"]),
        "events": [number(event) for event in drawn["events"]],
        "categories": [{"name": name, "bytes": columns[name]} for name in COLOURS if name in columns],
        "total": totals,
        "reserved": drawn["reserved_bytes"] and [number(value) for value in drawn["reserved_bytes"]],
        "phase": names["phase"],
        "operator": [short_operator(name) for name in names["operator"]],
        "module": names["module"],
        "step": steps,
        "limit": _limit(found),
        "table": table(("step", "phase", "most", "operator", "module"), cells, right=(2,)),
    }


def _limit(found: Mapping[str, Any]) -> list[Any] | None:
    """Name and memory of the one card that was asked for, without CUDA's context."""
    memory = MEMORY.get(found["device"])
    return None if memory is None else [found["device"], memory - (number(found.get("context_bytes")) or 0)]


MEMORY = {card.name: card.memory_bytes for card in DEVICES if card.memory_bytes is not None}
"""Name of a card -> its bytes."""


def cards(found: Mapping[str, Any]) -> Section | None:
    """Returns which cards an estimate fits, where it was asked of several."""
    if len(found["devices"]) < 2 or found.get("by_gpus"):
        return None
    rows = [
        {
            "name": str(one["name"]),
            "fits": bool(one["fits"]),
            "memory_bytes": MEMORY.get(one["name"]),
            "headroom_bytes": number(one["headroom_bytes"]),
            "step_seconds": number(one["step_seconds"]),
        }
        for one in found["devices"]
    ]
    rows.sort(key=lambda row: (row["memory_bytes"] or 0, row["name"]))
    cells = (
        (row["name"], size(row["memory_bytes"]), "fits" if row["fits"] else "does not fit", _room(row),
         seconds(row["step_seconds"]))
        for row in rows
    )  # fmt: skip
    return {"rows": rows, "table": table(("card", "memory", "", "room", "a step"), cells, right=(1, 3, 4))}


def _room(row: Mapping[str, Any]) -> str:
    if number(row["headroom_bytes"]) is None:
        return "no limit of its own"
    return f"{format_bytes(abs(row['headroom_bytes']))} {'left' if row['fits'] else 'short'}"


def by_gpus(found: Mapping[str, Any]) -> Section | None:
    """Returns what an estimate needs on several numbers of GPUs."""
    if not found.get("by_gpus"):
        return None
    numbers = found["by_gpus"]
    names = [_gpus(one) for one in numbers]
    cells = []
    for at, card in enumerate(found["devices"]):
        of_card = [one["devices"][at] if one["refusal"] is None else None for one in numbers]
        rooms = ["not possible" if one is None else f"{_room(one)}, {seconds(one['step_seconds'])}" for one in of_card]
        cells.append((card["name"], *rooms))
    rows = [{"name": name, "total_bytes": number(one["total_bytes"])} for name, one in zip(names, numbers, strict=True)]
    notes = [
        f"{name}: {one['refusal']}" for name, one in zip(names, numbers, strict=True) if one["refusal"] is not None
    ]
    return {"rows": rows, "notes": notes, "table": table(("card", *names), cells)}


def _gpus(one: Mapping[str, Any]) -> str:
    machines = f" in each of {one['nodes']} machines" if one["nodes"] > 1 else ""
    return f"{one['gpus']} GPU{'s' * (one['gpus'] > 1)}{machines}"


def ranks(rows: Sequence[Mapping[str, Any]], measured: Sequence[Mapping[str, Any]] = ()) -> Section | None:
    """Returns what each process needs that shares a batch; `rows`: predicted, `measured`: of a run."""
    if not rows and not measured:
        return None
    found = [(f"predicted, rank {row['ranks']}", row, "host_bytes") for row in rows]
    found += [(f"measured, rank {at}", row, "host_tensor_bytes") for at, row in enumerate(measured)]
    shown, cells = [], []
    for name, row, host in found:
        peaks = [number(row.get(key)) for key in ("peak_reserved_bytes", "peak_allocated_bytes", "peak_tensor_bytes")]
        shown.append({"name": name, "bytes": next((peak for peak in peaks if peak is not None), 0)})
        cells.append((name, size(peaks[1] if peaks[1] is not None else peaks[2]), size(peaks[0]), size(row.get(host))))
    return {"rows": shown, "table": table(("process", "in tensors", "reserved", "on the host"), cells, right=(1, 2, 3))}


def curve(rows: Sequence[Mapping[str, Any]]) -> Section | None:
    """Returns the losses of a run, step by step, and as a table all that was found; `rows`: its metrics."""
    names = {"loss": "training loss", "validation_loss": "validation loss"}
    every = -(-len(rows) // _MOST_ROWS) or 1
    kept = [row for at, row in enumerate(rows) if at % every == 0 or at == len(rows) - 1 or "loss" not in row]
    lines = [
        {
            "name": words,
            "points": [[number(row["step"]), number(row[key])] for row in kept if row.get(key) is not None],
        }
        for key, words in names.items()
    ]
    cells = []
    for row in kept:
        found = {key: number(value) for key, value in row.items() if key not in ("step", "epoch", "samples_per_second")}
        words = (
            f"{names.get(key, key).replace('_', ' ')} {'not finite' if value is None else format(value, '.4g')}"
            for key, value in found.items()
        )
        cells.append((row["step"], ", ".join(words)))
    drawn = [line for line in lines if line["points"]]
    return {"lines": drawn, "table": table(("step", "found"), cells, right=(0,))} if drawn else None
