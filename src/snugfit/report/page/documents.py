"""Documents of snugfit as a page shows them: which kind each is, and its sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from snugfit.recipe import Recipe
from snugfit.report.estimate_card import later_in_words
from snugfit.report.page.dial import dial
from snugfit.report.page.sections import (
    Section,
    anatomy,
    by_gpus,
    cards,
    curve,
    fidelity_in_words,
    largest,
    number,
    ranks,
    recipe_of,
    seconds,
    size,
    table,
    timeline,
    where_in_words,
)
from snugfit.report.plan_card import shown_reasons
from snugfit.report.words import answers_in_words
from snugfit.units import format_bytes

if TYPE_CHECKING:
    from snugfit.planner.budgets import Budgets

PEAKS = {
    "peak_reserved_bytes": "reserved by the allocator",
    "peak_allocated_bytes": "in tensors",
    "peak_tensor_bytes": "in tensors",
    "host_tensor_bytes": "on the host",
}
"""What a run measures -> in words; what stands for a run's memory first."""
_PEAKS = tuple(PEAKS)[:3]


def kind_of(document: Any) -> str | None:
    """Returns which kind of document this is; None where it is none that a page shows."""
    keys = document.keys() if isinstance(document, dict) else set()
    for kind, needs in _KINDS.items():
        if needs <= keys:
            return kind
    return None


_KINDS = {
    "ladder": {"rungs", "left_out"},
    "run": {"measured", "predicted", "metrics", "run_dir"},
    "unfinished run": {"workload", "rows", "saved_step"},
    "plan": {"estimate", "frontier", "budgets"},
    "profile": {"script", "largest_tensors"},
    "estimate": {"parameters", "anatomy_bytes", "devices", "batch_shape"},
}


def shown(
    document: Mapping[str, Any],
    *,
    name: str,
    budgets: Budgets | None = None,
    plan: Mapping[str, Any] | None = None,
    source: str = "",
    rows: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Returns the sections of a document; those that it holds nothing for are left out.

    `name`: what the page calls it. `budgets`: of a plan, or of the plan of a run. `plan`: of a run, what was planned.
    `source`: the file of the plan, for commands. `rows`: of a run, its metrics.
    """
    kind = kind_of(document)
    assert kind is not None
    sections: dict[str, Section | None] = dict(_SECTIONS[kind](document))
    sections["curve"] = curve(rows)
    if plan is not None:
        sections |= _planned(plan)
    held = document if kind == "plan" else plan
    if budgets is not None and held is not None:
        sections["dial"] = dial(budgets, number(held["budget_bytes"]), source)
    title = str(_TITLES[kind](document))
    return {
        "name": name,
        "kind": kind,
        "title": title,
        "sections": {key: found for key, found in sections.items() if found},
    }


_TITLES: dict[str, Any] = {
    "ladder": lambda document: f"{document['preset'] or document['model']} on {document['device']}",
    "run": lambda document: f"{document['workload']['model']} on {document['workload']['data']}",
    "unfinished run": lambda document: (
        f"{document['workload']['model']} on {document['workload']['data']}, not finished"
    ),
    "plan": lambda document: (
        f"{document['estimate']['title']} on {document['estimate']['device']} within "
        f"{format_bytes(document['budget_bytes'])}"
    ),
    "profile": lambda document: f"{document['script']} on {document['device']}",
    "estimate": lambda document: (
        f"{document['title']} on {'cards of the table' if document['device'] == 'all' else document['device']}"
    ),
}


def _estimate(found: Mapping[str, Any], *, where: str = "") -> Iterator[tuple[str, Section | None]]:
    """`where`: on which cards it takes the memory that is told, in words."""
    yield "facts", {"rows": [list(row) for row in _facts(found, where) if row[1]]}
    yield from _of_estimate(found).items()


def _of_estimate(found: Mapping[str, Any]) -> dict[str, Section | None]:
    return {
        "anatomy": anatomy(found),
        "timeline": timeline(found),
        "largest": largest(found),
        "cards": cards(found),
        "gpus": by_gpus(found),
        "ranks": ranks(found["ranks"]),
    }


def _facts(found: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    yield "model", f"{number(found['parameters']):,} parameters, batch of {found['batch_shape']}"
    yield "recipe", recipe_of(found["recipe"])
    yield "fidelity", fidelity_in_words(found["fidelity"])
    parts = (("context_bytes", "CUDA's context"), ("nccl_bytes", "NCCL"))
    of_it = " and ".join(f"{size(found[key])} {what}" for key, what in parts if found[key])
    yield "memory", f"{size(found['total_bytes'])}{where}{f', of it {of_it}' if of_it else ''} (predicted)"
    if found["ranks"] and found["nccl_bytes"] is None and found["processor"] is None:
        yield "NCCL", "comes on top; what it takes on such cards nobody has published"
    yield "steps", f"the first {found['steps']}; {later_in_words(found['title'])}" if found["steps"] is not None else ""
    yield "answered", answers_in_words(found["answered"])
    yield "peak", where_in_words(found)
    yield "host memory", size(found["host_bytes"]) if found["host_bytes"] else ""
    yield "time", f"{seconds(found['step_seconds'])} a step (predicted)" if found["step_seconds"] else ""
    machines = f" in each of {found['nodes']} machines" if number(found["nodes"]) > 1 else ""
    yield (
        "GPUs",
        f"{found['gpus']}{machines}, a process each; the bytes are those of the fullest" if found["ranks"] else "",
    )


def _plan(document: Mapping[str, Any]) -> Iterator[tuple[str, Section | None]]:
    yield from _estimate(document["estimate"], where=" where memory is not short")
    yield from _planned(document).items()


def _planned(document: Mapping[str, Any]) -> dict[str, Section | None]:
    recipe, several = Recipe.from_mapping(document["recipe"]), bool(document["estimate"]["ranks"])
    why = list(shown_reasons(document["reasons"], recipe, several=several))
    return {
        **{name: found for name, found in _of_estimate(document["estimate"]).items() if name != "cards"},
        "why": {"table": table(("option", "why"), why)} if why else None,
    }


def _run(document: Mapping[str, Any]) -> Iterator[tuple[str, Section | None]]:
    request, metrics = document["workload"], document["metrics"]
    facts = [
        (
            "trained",
            f"{number(document['steps'])} steps of {request['settings']['batch_size']} on {document['device']}",
        ),
        ("recipe", recipe_of(document["recipe"])),
        ("fidelity", fidelity_in_words(document["fidelity"])),
        ("whole run", seconds(document["seconds"]) if document["seconds"] is not None else ""),
        *((name.replace("_", " "), f"{number(value):.4g}") for name, value in metrics.items() if value is not None),
    ]
    yield "facts", {"rows": [list(row) for row in facts if row[1]]}
    measured, predicted = document["measured"], document["predicted"] or {}
    pairs = [
        {"name": words, "predicted": number(predicted.get(key)), "measured": number(measured[key])}
        for key, words in PEAKS.items()
        if measured.get(key) is not None and (measured[key] or predicted.get(key))
    ]
    times = []
    if document["samples_per_second"] and predicted.get("step_seconds") is not None:
        batch = number(request["settings"]["batch_size"])
        step = {"predicted": number(predicted["step_seconds"]), "measured": batch / document["samples_per_second"]}
        times.append({"name": "a step", **step})
    yield "measured", beside(pairs, times)
    yield "ranks", ranks((), measured.get("ranks") or ())


def _unfinished(document: Mapping[str, Any]) -> Iterator[tuple[str, Section | None]]:
    settings, saved = document["workload"]["settings"], number(document["saved_step"])
    asked = f"{settings['epochs']} epochs" if settings["max_steps"] is None else f"{settings['max_steps']} steps"
    facts = [
        ("trained", f"{number(document['rows'][-1]['step'])} steps of {settings['batch_size']} so far, of {asked}"),
        ("saved", "nothing yet" if saved is None else f"a checkpoint after step {saved}"),
        ("recipe", recipe_of(document["recipe"])),
    ]
    yield "facts", {"rows": [list(row) for row in facts]}


def beside(pairs: list[dict[str, Any]], times: list[dict[str, Any]] | None = None) -> Section | None:
    """Returns predicted beside measured: bytes, and seconds."""
    if not pairs:
        return None
    cells = [
        (one["name"], words(one["predicted"]), words(one["measured"]), error(one["predicted"], one["measured"]))
        for rows, words in ((pairs, size), (times or [], seconds))
        for one in rows
    ]
    columns = ("", "predicted", "measured", "predicted less measured")
    return {"rows": pairs, "table": table(columns, cells, right=(1, 2, 3))}


def error(predicted: float | None, measured: float | None) -> str:
    """Returns how far a prediction is off, as a share of what was measured."""
    return f"{predicted / measured - 1:+.2%}" if predicted is not None and measured else "-"


def _profile(document: Mapping[str, Any]) -> Iterator[tuple[str, Section | None]]:
    facts = [
        ("measured", f"{number(document['steps'])} steps on {document['device']}"),
        ("memory", size(document["allocator_peak_bytes"])),
        ("peak", where_in_words(document)),
    ]
    yield "facts", {"rows": [list(row) for row in facts]}
    yield "anatomy", anatomy(document)
    yield "timeline", timeline(document)
    yield "largest", largest(document)


def _ladder(document: Mapping[str, Any]) -> Iterator[tuple[str, Section | None]]:
    pairs, cells = [], []
    for rung in document["rungs"]:
        of_rung = rung_bytes(rung)
        pairs.append({"name": str(rung["name"]), **of_rung, "fidelity": str(rung["fidelity"]["level"])})
        cells.append(
            (
                rung["name"],
                size(of_rung["predicted"]),
                size(of_rung["measured"]),
                error(of_rung["predicted"], of_rung["measured"]),
                seconds(rung["seconds"]),
                rung["fidelity"]["level"],
                rung["error"] or rung["change"],
            )
        )
    columns = ("rung", "predicted", "measured", "predicted less measured", "time", "fidelity", "what changes")
    known = [one for one in range(len(columns)) if one not in _FOUND or any(row[one] != size(None) for row in cells)]
    right = [known.index(one) for one in _FOUND if one in known]
    told = [[row[one] for one in known] for row in cells]
    yield "rungs", {"rows": pairs, "table": table([columns[one] for one in known], told, right=right)}


_FOUND = range(1, 5)
"""Columns of a ladder that are left out where they say nothing: what is only predicted was not measured."""


def rung_bytes(rung: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the peak of a rung as it was predicted and measured, each None where it was not."""
    predicted, measured = rung["predicted"] or {}, rung["measured"] or {}
    peak = next((key for key in _PEAKS if measured.get(key) is not None), None)
    guess = predicted.get(peak) if peak is not None else None
    return {
        "predicted": number(guess if guess is not None else predicted.get("total_bytes")),
        "measured": None if peak is None else number(measured[peak]),
    }


_SECTIONS: dict[str, Any] = {
    "ladder": _ladder,
    "run": _run,
    "unfinished run": _unfinished,
    "plan": _plan,
    "profile": _profile,
    "estimate": _estimate,
}
