"""Predicted and measured memory of every configuration of the list; `benchmarks/report` makes the distribution of it.

Each row is one process of `snugfit train --predict --json`: what it predicts, and what it then measures of itself, from
building to evaluation. Models whose kind of data `snugfit train` does not read (segmentation, sequence to sequence, masks)
take the same course of steps in a process of the harness.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.configurations import BY_NAME, cases
from benchmarks.gpu.part import Part, Place, Read, percent

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.runs.request import Request
    from snugfit.workers.pool import Pool


def measure(name: str, place: Place) -> dict[str, Any]:
    """Trains a configuration for a few steps.

    Args:
        name: Its name.
        place: Where.

    Returns:
        As `training_run.measure`.
    """
    from benchmarks.gpu import training_run

    return training_run.measure(BY_NAME[name].run(place.kind), place)


def predict(name: str, place: Place, pool: Pool) -> dict[str, Any]:
    """Simulates a configuration.

    Args:
        name: Its name.
        place: Where it is measured.
        pool: Workers.

    Returns:
        As `training_run.predict`.
    """
    from benchmarks.gpu import training_run

    configuration = BY_NAME[name]
    request = configuration.request(place.kind)
    if request is None:
        return training_run.predict(configuration.run(place.kind), place, pool)
    return _predict_train(request, configuration.held(place.kind), place, pool)


def _predict_train(request: Request, recipe: Recipe, place: Place, pool: Pool) -> dict[str, Any]:
    """Predicts a run of `snugfit train` for a place that need not be here."""
    from benchmarks.gpu import training_run
    from snugfit.runs.job import open_job
    from snugfit.runs.planned import described
    from snugfit.simulator.batch_shapes import skeleton_of
    from snugfit.simulator.given_training import simulate_training

    model, batch, arguments = described(open_job(request, download=False))
    recording = simulate_training(
        model,
        recipe,
        skeleton_of(batch),
        personality=training_run.personality(place),
        evaluate=request.settings.evaluate,
        pool=pool,
        arguments=arguments,
    )
    return training_run.prediction_of(recording, place)


def command(name: str, place: Place) -> tuple[list[str], Read] | None:
    """Returns the `snugfit train` that is a configuration, and how its document is read.

    Args:
        name: Its name.
        place: Where it is measured.

    Returns:
        None where `snugfit train` reads no such data.
    """
    words = BY_NAME[name].train_words(place.kind)
    asked = BY_NAME[name].held(place.kind)
    return None if words is None else (words, functools.partial(read_document, asked=asked))


def read_document(document: dict[str, Any], *, asked: Recipe) -> dict[str, Any]:
    """Returns `predicted` and `measured` of a row.

    Args:
        document: From `snugfit train --json`.
        asked: The recipe that was asked for.

    Raises:
        InputError: As `measured_of`.
    """
    from benchmarks.gpu.training_run import in_one_form

    measured, predicted = measured_of(document, asked), document["predicted"]
    one_form = in_one_form(predicted)
    found = {"allocated_bytes": one_form["allocated_bytes"], "reserved_bytes": one_form["reserved_bytes"]}
    found |= {
        "host_bytes": predicted["host_tensor_bytes"],
        "step_seconds": predicted["step_seconds"],
        "peak_module": "",
    }
    found |= {key: predicted[key] for key in ("peak_phase", "peak_operator")}
    return {"predicted": found, "measured": measured}


def measured_of(document: dict[str, Any], asked: Recipe) -> dict[str, Any]:
    """Returns `measured` of a row.

    Args:
        document: From `snugfit train --json`.
        asked: The recipe that was asked for.

    Raises:
        InputError: Memory ran out, and the run went on with another recipe.
    """
    from benchmarks.gpu.training_run import in_one_form
    from snugfit.errors import InputError

    if document["recipe"] != asked.to_mapping():
        raise InputError("memory ran out, and the run went on with another recipe; the card is too small")
    measured = document["measured"]
    seconds = document["workload"]["settings"]["batch_size"] / document["samples_per_second"]
    host = {"host_bytes": measured.get("host_tensor_bytes", 0), "step_seconds": seconds}
    return {**in_one_form(measured), **host}


def _line(row: dict[str, Any]) -> str:
    predicted, measured = row["predicted"], row["measured"]
    shown = [
        f"{what} {measured[key]:>14,} {percent(predicted[key], measured[key]):>9}"
        for what, key in (("allocated", "allocated_bytes"), ("reserved", "reserved_bytes"))
        if measured.get(key)
    ]
    if measured["host_bytes"] and place_is_cpu(row):
        shown.append(f"host {percent(predicted['host_bytes'], measured['host_bytes'])}")
    return "  ".join(shown)


def place_is_cpu(row: dict[str, Any]) -> bool:
    """Returns whether a row was measured on a CPU, where the host pool alone is host memory.

    Args:
        row: A row of this part.
    """
    return row["measured"].get("reserved_bytes") is None


PART = Part(
    name="accuracy",
    title="Predicted and measured memory",
    cases=cases,
    command=command,
    measure=measure,
    predict=predict,
    line=_line,
    first=24,
    timed=False,
    limit_seconds=180,
)
