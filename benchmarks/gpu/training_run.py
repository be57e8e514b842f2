"""One short training run, measured for real and predicted from the same description: what several parts share."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

import snugfit
from benchmarks.gpu.part import Place
from benchmarks.held_out import take_course
from snugfit.devices import Device, device_named
from snugfit.fake_device.personality import Personality
from snugfit.measure.meter import Meter, meter_for
from snugfit.recipe import Recipe
from snugfit.recording.clock import clock
from snugfit.recording.recording import Recording
from snugfit.recording.replay import replay
from snugfit.recording.tensor_bytes import TensorBytes
from snugfit.simulator.given_training import simulate_training
from snugfit.simulator.session import STEPS
from snugfit.techniques.init.apply import build
from snugfit.workers.pool import Pool

MORE_STEPS = 3
"""Steps after those that the simulation also takes; they are timed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A model, what it is trained on, and by which recipe."""

    build: Callable[[], torch.nn.Module]
    """Builds the model; it must travel to another process."""
    batch: Callable[[], Any]
    """Makes one batch on torch's default device."""
    recipe: Recipe
    """How the step is held in memory."""
    arguments: dict[str, Any]
    """The other arguments of `snugfit.prepare`."""
    evaluate: bool = True
    """Whether a batch is evaluated between the first two steps."""


def measure(run: TrainingRun, place: Place) -> dict[str, Any]:
    """Trains for a few steps and measures.

    Args:
        run: What is trained.
        place: Where; its kind is the device.

    Returns:
        `allocated_bytes` (CPU: peak tensor bytes), `reserved_bytes` and `nvml_bytes` (None on a CPU), `rss_bytes` (None on
        a card), `host_bytes` (the host pool's peak), `step_seconds` (median of the later steps), and on a card
        `outside_bytes` (what it has in use beside the allocator's segments: context, libraries, other processes).
    """
    device = torch.device(place.kind)
    torch.manual_seed(0)
    meter = meter_for(device, window_steps=STEPS)
    meter.start()
    model = built(run, device)
    trainer = snugfit.prepare(model, run.recipe, device=device, **run.arguments)
    timed = _Timed(meter, run.batch, device)
    steps = STEPS + MORE_STEPS
    take_course(trainer, timed.batch, run.arguments, steps=steps, evaluate=run.evaluate, observer=timed)
    if trainer.recipe != run.recipe:
        raise RuntimeError(
            f"memory ran out, and the run went on with {trainer.recipe.to_mapping(defaults=False)}; the card is too small"
        )
    return {
        **in_one_form(meter.result(trainer.peak_host_bytes)),
        "host_bytes": trainer.peak_host_bytes,
        "step_seconds": statistics.median(timed.seconds[STEPS:]),
        **_outside(device),
    }


class _Timed:
    """Stands between the course and the meter, and times each step from its batch on."""

    def __init__(self, meter: Meter, batch: Callable[[], Any], device: torch.device) -> None:
        self._meter, self._batch, self._device = meter, batch, device
        self._started = 0.0
        self.seconds: list[float] = []

    def batch(self) -> Any:
        made = self._batch()
        wait(self._device)
        self._started = time.perf_counter()
        return made

    def after_step(self, steps_done: int) -> None:
        wait(self._device)
        self.seconds.append(time.perf_counter() - self._started)
        self._meter.after_step(steps_done)

    def before_evaluation(self) -> None:
        self._meter.before_evaluation()

    def after_evaluation(self) -> None:
        self._meter.after_evaluation()


def built(run: TrainingRun, device: torch.device) -> torch.nn.Module:
    """Builds a run's model as its recipe says; `prepare` does the rest.

    Args:
        run: The run.
        device: Where it trains.
    """
    dtype = {"16": torch.float16, "bf16": torch.bfloat16}.get(run.recipe.true_precision or "")
    return build(run.build, init=run.recipe.init, device=device, dtype=dtype)


def in_one_form(result: dict[str, int | None]) -> dict[str, int | None]:
    """Returns what a meter says under names that hold for cards and CPUs.

    Args:
        result: From `meter.result`.
    """
    return {
        "allocated_bytes": result.get("peak_allocated_bytes", result.get("peak_tensor_bytes")),
        "reserved_bytes": result.get("peak_reserved_bytes"),
        "nvml_bytes": result.get("nvml_bytes"),
        "rss_bytes": result.get("rss_bytes"),
    }


def _outside(device: torch.device) -> dict[str, int]:
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {"outside_bytes": total - free - torch.cuda.memory_reserved(device)}


def personality(place: Place, *, threads: int | None = 1) -> Personality:
    """Returns what the simulation takes the place for.

    Args:
        place: Where the run is measured.
        threads: Threads of a run on a CPU; None: as many as torch takes.
    """
    if place.kind == "cpu":
        return Personality(kind="cpu", threads=threads)
    return Personality(capability=place.capability or (8, 0))


def record(run: TrainingRun, place: Place, pool: Pool, *, threads: int | None = 1) -> Recording:
    """Simulates the same run.

    Args:
        run: What is trained.
        place: Where it is measured.
        pool: Workers.
        threads: As for `personality`.

    Returns:
        The recording.
    """
    with torch.device("meta"):
        batch = run.batch()
    return simulate_training(
        run.build,
        run.recipe,
        batch,
        personality=personality(place, threads=threads),
        evaluate=run.evaluate,
        pool=pool,
        arguments=run.arguments,
    )


def predict(run: TrainingRun, place: Place, pool: Pool, *, threads: int | None = 1) -> dict[str, Any]:
    """Predicts what `measure` measures.

    Args:
        run: What is trained.
        place: Where it is measured.
        pool: Workers.
        threads: As for `personality`.

    Returns:
        The same names, as far as they are predicted, and where the peak is: `peak_phase`, `peak_operator`, `peak_module`.
    """
    return prediction_of(record(run, place, pool, threads=threads), place)


def prediction_of(recording: Recording, place: Place) -> dict[str, Any]:
    """Returns what a recording predicts.

    Args:
        recording: The recording.
        place: Where the run is measured.

    Returns:
        As `predict`.
    """
    played = replay(recording.trace, TensorBytes() if place.kind == "cpu" else None)
    card = card_of(place)
    timing = None if card is None else clock(recording.trace, card)
    return {
        "allocated_bytes": played.peak_allocated_bytes,
        "reserved_bytes": None if place.kind == "cpu" else played.peak_reserved_bytes,
        "host_bytes": played.host_peak_bytes,
        "step_seconds": None if timing is None else timing.step_seconds,
        "peak_phase": played.peak_phase,
        "peak_operator": played.peak_operator,
        "peak_module": played.peak_module,
    }


def card_of(place: Place) -> Device | None:
    """Returns the row of the device table, or None for a CPU and for a card without a row.

    Args:
        place: Where rows are measured.
    """
    if place.kind == "cpu":
        return None
    try:
        return device_named(place.card)
    except snugfit.InputError:
        return None


@contextlib.contextmanager
def calibrated(place: Place) -> Iterator[None]:
    """Caches of their own, in which a processor is calibrated, so that nothing in them is of another day.

    Args:
        place: Where.
    """
    if place.kind != "cpu":
        yield
        return
    from snugfit.calibration.calibrate import calibrate

    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, XDG_CACHE_HOME=folder):
        calibrate(torch.device("cpu"))
        yield


def wait(device: torch.device) -> None:
    """Waits for a card.

    Args:
        device: The device; nothing happens on a CPU.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
