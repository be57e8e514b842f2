"""The guides' ladder for real: ViT-L/16, batch 64, each rung beside what the guides printed, and our rungs below theirs.

The guides' own rungs are steps written by hand in the order of their source (`benchmarks/published.py`); ours are those of
`snugfit ladder`. On a CPU a small transformer of the same structure takes the same ways.

Source: `rasbt/pytorch-memory-optim` and its article; peak memory is reserved GB, times are minutes of one epoch on one
unnamed GPU, so they can be compared from rung to rung and not with another card's.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.part import Case, Part, Place, percent
from benchmarks.gpu.subjects import image_loss
from benchmarks.gpu.turn import take_turn
from snugfit.ladder import Ladder, build_ladder
from snugfit.units import format_bytes
from snugfit.workload import Workload

if TYPE_CHECKING:
    import torch

    from benchmarks.gpu.training_run import TrainingRun
    from benchmarks.published import Rung
    from snugfit.workers.pool import Pool

BATCH = 64
_BY_HAND, _OURS = "by hand: ", "snugfit: "
_LR = 5e-5


def cases(place: Place) -> Sequence[Case]:
    """Returns the guides' rungs, then ours.

    Args:
        place: Where they are measured.
    """
    from benchmarks.published import RUNGS

    found = [
        Case(
            name=_BY_HAND + rung.name,
            settings={
                "batch": rung.batch_size,
                "published_reserved_gb": rung.published_gb,
                "published_minutes": rung.published_minutes,
            },
            packages=("torchvision",),
        )
        for rung in RUNGS
    ]
    for rung in _ladder(place).rungs:
        settings = {"recipe": rung.recipe.to_mapping(defaults=False), "batch": rung.workload.batch_size}
        found.append(Case(name=_OURS + rung.name, settings=settings, packages=("torchvision",)))
    return found


def _ladder(place: Place) -> Ladder:
    return build_ladder(Workload(lr=_LR), device=place.kind, bf16=place.bf16, batch_size=BATCH)


def model(kind: str, half: bool = False) -> torch.nn.Module:
    """ViT-L/16 for ten classes, on a CPU a small one.

    Args:
        kind: `cuda` or `cpu`.
        half: Whether its weights are in bf16.
    """
    import torch
    from torchvision.models import VisionTransformer, vit_l_16

    if kind == "cuda":
        made: torch.nn.Module = vit_l_16(num_classes=10)
    else:
        made = VisionTransformer(
            image_size=32, patch_size=8, num_layers=4, num_heads=4, hidden_dim=64, mlp_dim=256, num_classes=10
        )
    return made.to(torch.bfloat16) if half else made


def batch(kind: str, samples: int) -> Any:
    """Random images and labels.

    Args:
        kind: `cuda` or `cpu`.
        samples: How many.
    """
    import torch

    side = 224 if kind == "cuda" else 32
    return torch.randn(samples, 3, side, side), torch.randint(0, 10, (samples,))


def _ours(name: str, place: Place) -> TrainingRun:
    from benchmarks.gpu.training_run import TrainingRun

    rung = next(rung for rung in _ladder(place).rungs if _OURS + rung.name == name)
    workload = rung.workload
    samples = workload.batch_size or BATCH
    return TrainingRun(
        build=functools.partial(model, place.kind),
        batch=functools.partial(batch, place.kind, samples),
        recipe=rung.recipe,
        arguments={
            "loss": image_loss,
            "optimizer": workload.optimizer,
            "lr": workload.lr,
            "lr_schedule": workload.lr_schedule,
            "momentum": workload.momentum,
            "max_steps": 1000,
            "batch_size": samples,
        },
    )


def _hand(name: str, place: Place) -> Rung:
    from benchmarks.published import RUNGS, half_vit

    rung = next(rung for rung in RUNGS if _BY_HAND + rung.name == name)
    return dataclasses.replace(rung, model=functools.partial(model, place.kind, rung.model is half_vit))


def measure(name: str, place: Place) -> dict[str, Any]:
    """Trains a rung for a few steps.

    Args:
        name: The rung.
        place: Where.

    Returns:
        As `training_run.measure`, and `sample_seconds`.
    """
    from benchmarks.gpu import training_run

    take_turn()
    if name.startswith(_OURS):
        run = _ours(name, place)
        found, samples = training_run.measure(run, place), run.arguments["batch_size"]
    else:
        rung = _hand(name, place)
        found, samples = _measure_by_hand(rung, place), rung.batch_size
    return {**found, "sample_seconds": found["step_seconds"] / samples}


def _measure_by_hand(rung: Rung, place: Place) -> dict[str, Any]:
    import statistics
    import time

    import torch

    from benchmarks.gpu.training_run import in_one_form, wait
    from snugfit.measure.meter import meter_for

    device = torch.device(place.kind)
    torch.manual_seed(0)
    meter = meter_for(device)
    meter.start()
    made = rung.model().to(device)
    optimizer = rung.optimizer(made.parameters())
    seconds = []
    for number in range(5):
        images, labels = batch(place.kind, rung.batch_size)
        wait(device)
        started = time.perf_counter()
        rung.step(made, optimizer, (images, labels))
        wait(device)
        seconds.append(time.perf_counter() - started)
        meter.after_step(number + 1)
        del images, labels
    return {**in_one_form(meter.result(0)), "host_bytes": 0, "step_seconds": statistics.median(seconds[2:])}


def predict(name: str, place: Place, pool: Pool) -> dict[str, Any]:
    """Simulates a rung.

    Args:
        name: The rung.
        place: Where it is measured.
        pool: Workers.

    Returns:
        As `training_run.predict`.
    """
    import torch

    from benchmarks.gpu import training_run
    from snugfit.simulator.own_step import simulate_step

    if name.startswith(_OURS):
        return training_run.predict(_ours(name, place), place, pool, threads=None)
    rung = _hand(name, place)
    with torch.device("meta"):
        given = batch(place.kind, rung.batch_size)
    recording = simulate_step(
        rung.step,
        rung.model,
        rung.optimizer,
        given,
        personality=training_run.personality(place, threads=None),
        batch_on="host" if place.kind == "cuda" else "device",
        steps=3,
        pool=pool,
    )
    return training_run.prediction_of(recording, place)


def _line(row: dict[str, Any]) -> str:
    predicted, measured, settings = row["predicted"], row["measured"], row["settings"]
    key = "reserved_bytes" if measured["reserved_bytes"] else "allocated_bytes"
    published = settings.get("published_reserved_gb")
    beside = f"  (published: {published} GB)" if published and measured["reserved_bytes"] else ""
    return (
        f"{format_bytes(measured[key])} {percent(predicted[key], measured[key]):>9}  "
        f"{measured['sample_seconds'] * 1e3:8.2f} ms a sample{beside}"
    )


PART = Part(
    name="ladder",
    title="The guides' ladder, and the rungs below it",
    cases=cases,
    measure=measure,
    predict=predict,
    line=_line,
    first=16,
    timed=True,
    limit_seconds=180,
)
