"""Predicted and measured time: of a step, of a recomputed block, and the constants that predictions of time rest on.

The time of one recomputed block is that of a step with all blocks checkpointed less that of a plain one, over the number of
blocks. The constants are those of `devices.yaml` and `recording/clock.py`, measured again on this card; on a CPU they are
what `operators/host_speeds.py` measures, and the link to the host is left out.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.configurations import Configuration, line
from benchmarks.gpu.part import Case, Part, Place, percent
from benchmarks.gpu.turn import take_turn

if TYPE_CHECKING:
    import torch

    from benchmarks.gpu.training_run import TrainingRun

STEPS: tuple[Configuration, ...] = (
    line("vit_b_16", precision="bf16-mixed"),
    line("llama_1b", precision="bf16-true"),
    line("resnet50"),
    line("vit_b_16", precision="bf16-mixed", microbatch_size=8),
    line("bert_large", precision="bf16-mixed"),
    line("vit_b_16"),
    line("resnet50", precision="bf16-mixed"),
    line("swin_t"),
    line("gpt2"),
    line("convnext_tiny", precision="bf16-true"),
)
"""Plain steps; each is also timed with all blocks checkpointed."""
_STEP = "step: "
_FIRST, _TIMED_STEPS = 2, 10
_PASSES = {"cuda": 1, "cpu": 3}
"""Each pass predicts and measures anew, on a CPU from its calibration on; the median counts. A shared machine is up to a
fifth slower or faster for a minute at a time, between a prediction and its measurement too (docs/log/2026-11-23.md)."""
_ROUNDS = {"cuda": 1, "cpu": 5}
"""Each round takes steps of a model that is built anew, plain and checkpointed in turn."""
_SHARE = {"cuda": 0.5, "cpu": 0.25}
"""Which of the measured steps counts, from the fastest on: a processor that is shared is slower for moments of a step."""
PRODUCTS = ("float32", "tf32", "float16", "bfloat16")
"""Types in which a large product is timed."""
_SIDE = {"cuda": 8192, "cpu": 640}
_COPY_BYTES = {"cuda": 2**31, "cpu": 2**26}
_LINK_BYTES = 2**29


def cases(place: Place) -> Sequence[Case]:
    """Returns the constants, then the steps.

    Args:
        place: Where they are measured.
    """
    on_cpu = "a CPU has no link to a host" if place.kind == "cpu" else ""
    found = [Case(name="constant: products", settings={"side": _SIDE[place.kind], "types": PRODUCTS})]
    found.append(Case(name="constant: copy", settings={"bytes": _COPY_BYTES[place.kind]}))
    found.append(Case(name="constant: operator", settings={"operator": "addition of 1024 numbers"}))
    found.append(Case(name="constant: host link", settings={"bytes": _LINK_BYTES}, left_out=on_cpu))
    for configuration in STEPS:
        settings = {
            "model": configuration.subject,
            "samples": configuration.samples(place.kind),
            "recipe": configuration.recipe,
        }
        found.append(Case(name=_STEP + configuration.name, settings=settings, packages=configuration.packages))
    return found


def measure(name: str, place: Place) -> dict[str, Any]:
    """Measures a constant, or the steps of a configuration and their prediction.

    Args:
        name: The case.
        place: Where.

    Returns:
        For steps: measured and predicted seconds of a plain and a checkpointed step and of one recomputed block, medians of
        `passes`, where each has its own; for constants the value measured, beside the one that predictions use.
    """
    import torch

    device = torch.device(place.kind)
    if name == "constant: products":
        return _products(device, place)
    if name == "constant: copy":
        return _copy(device, place)
    if name == "constant: operator":
        return _operator(device)
    if name == "constant: host link":
        return _link(device, place)
    configuration = next(one for one in STEPS if _STEP + one.name == name)
    return _steps(configuration, place)


# -- steps


def _steps(configuration: Configuration, place: Place) -> dict[str, Any]:
    import torch

    from benchmarks.gpu.training_run import calibrated
    from snugfit.techniques.blocks import find_blocks

    runs = _runs(configuration, place)
    passes: list[dict[str, float | None]] = []
    for _ in range(_PASSES[place.kind]):
        with calibrated(place):
            predicted = _predicted(runs, place)
        take_turn()
        seconds: list[list[float]] = [[] for _ in runs]
        for _ in range(_ROUNDS[place.kind]):
            for run, times in zip(runs, seconds, strict=True):
                times += _step_seconds(run, place)
        one: dict[str, float | None] = {}
        for name, times, expected in zip(("step", "checkpointed_step"), seconds, predicted, strict=True):
            one[f"{name}_seconds"] = sorted(times)[int(_SHARE[place.kind] * len(times))]
            one[f"median_{name}_seconds"] = statistics.median(times)
            one[f"predicted_{name}_seconds"] = expected
        passes.append(one)
    with torch.device("meta"):
        blocks = len(find_blocks(runs[0].build()))
    found: dict[str, Any] = {name: _median([one[name] for one in passes]) for name in passes[0]}
    return _with_blocks({**found, "passes": passes, "blocks": blocks})


def _runs(configuration: Configuration, place: Place) -> tuple[TrainingRun, TrainingRun]:
    """Plain steps, and those with all blocks checkpointed."""
    plain = configuration.run(place.kind)
    return plain, dataclasses.replace(plain, recipe=plain.recipe.replace(checkpoint="all"))


def _with_blocks(found: dict[str, Any]) -> dict[str, Any]:
    """Adds the seconds of a recomputed block, measured and predicted."""
    for before in ("", "predicted_"):
        kept, again = found[f"{before}step_seconds"], found[f"{before}checkpointed_step_seconds"]
        found[f"{before}block_seconds"] = None if kept is None or again is None else (again - kept) / found["blocks"]
    return found


def predicted_again(name: str, measured: dict[str, Any], place: Place) -> dict[str, Any]:
    """Returns what was measured of a card's steps with predictions made anew; constants as they are.

    Args:
        name: The case.
        measured: From `measure`.
        place: The card.
    """
    if not name.startswith(_STEP) or place.kind == "cpu":
        return measured
    runs = _runs(next(one for one in STEPS if _STEP + one.name == name), place)
    names = ("predicted_step_seconds", "predicted_checkpointed_step_seconds")
    new = dict(zip(names, _predicted(runs, place), strict=True))
    return _with_blocks({**measured, **new, "passes": [{**one, **new} for one in measured["passes"]]})


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _predicted(runs: Sequence[TrainingRun], place: Place) -> list[float | None]:
    """Seconds of the last step of each run."""
    from benchmarks.gpu.training_run import card_of, record
    from snugfit.operators.host_speeds import host_speeds
    from snugfit.recording.clock import clock
    from snugfit.recording.cpu_clock import cpu_clock
    from snugfit.workers.pool import Pool

    pool = Pool()
    try:
        recordings = [record(run, place, pool, threads=None) for run in runs]
    finally:
        pool.close()
    if place.kind == "cpu":
        return [cpu_clock(recording.trace, host_speeds()).step_seconds for recording in recordings]
    card = card_of(place)
    timings = [None if card is None else clock(recording.trace, card) for recording in recordings]
    return [None if timing is None else timing.step_seconds for timing in timings]


def _step_seconds(run: TrainingRun, place: Place) -> list[float]:
    """Seconds of steady steps; the batch is on the host, as a loader gives it."""
    import torch

    import snugfit
    from benchmarks.gpu.training_run import built, wait
    from snugfit.device_kinds import work_clock

    device = torch.device(place.kind)
    now = work_clock(device)  # other processes are no part of what is predicted
    torch.manual_seed(0)
    trainer = snugfit.prepare(built(run, device), run.recipe, device=device, **run.arguments)
    batch = run.batch()
    for _ in range(_FIRST):
        trainer.step(batch)

    wait(device)
    seconds = []
    for _ in range(_TIMED_STEPS):
        started = now()
        trainer.step(batch)
        wait(device)
        seconds.append(now() - started)
    trainer.finish()
    return seconds


# -- constants


def _products(device: torch.device, place: Place) -> dict[str, Any]:
    """FLOP/s of a large product of random numbers by type, beside the table's peak and the share that is counted on."""
    from benchmarks.gpu.training_run import card_of
    from snugfit.calibration.card_speeds import product_rates
    from snugfit.recording.kernel_times import PRODUCT_SHARE

    card = card_of(place)
    rates = product_rates(device)
    peaks = {} if card is None else {name: card.flops.get(name) for name in rates}
    return {"flops_per_second": rates, "table_peak_flops": peaks, "share_counted_on": PRODUCT_SHARE}


def _copy(device: torch.device, place: Place) -> dict[str, Any]:
    """Bytes a second that a copy on the device reads and writes."""
    from benchmarks.gpu.training_run import card_of
    from snugfit.calibration.card_speeds import copy_rate
    from snugfit.recording.kernel_times import MEMORY_SHARE

    card = card_of(place)
    return {
        "bytes_per_second": copy_rate(device),
        "table_peak_bytes": None if card is None else card.memory_bandwidth,
        "share_counted_on": MEMORY_SHARE,
    }


def _operator(device: torch.device) -> dict[str, Any]:
    """Seconds of the host and of the card for an operator with next to nothing to do."""
    import torch

    from benchmarks.gpu.training_run import wait
    from snugfit.calibration.card_speeds import kernel_seconds
    from snugfit.recording.clock import HOST_LAUNCH_SECONDS, HOST_OPERATOR_SECONDS
    from snugfit.recording.kernel_times import KERNEL_SECONDS

    small = torch.ones(1024, device=device)
    count = 1000

    def many() -> None:
        for _ in range(count):
            small.add(1.0)

    many()
    wait(device)
    started = time.perf_counter()
    many()
    host = (time.perf_counter() - started) / count
    wait(device)
    found: dict[str, Any] = {
        "host_seconds": host,
        "host_seconds_counted_on": HOST_OPERATOR_SECONDS + HOST_LAUNCH_SECONDS,
        "kernel_seconds": kernel_seconds(device),
        "kernel_seconds_counted_on": KERNEL_SECONDS,
    }
    return found


def _link(device: torch.device, place: Place) -> dict[str, Any]:
    """Bytes a second between page-locked host memory and the card, each way."""
    from benchmarks.gpu.training_run import card_of
    from snugfit.calibration.card_speeds import link_rates
    from snugfit.recording.kernel_times import LINK_SHARE

    to_card, to_host = link_rates(device)
    card = card_of(place)
    return {
        "to_card_bytes_per_second": to_card,
        "to_host_bytes_per_second": to_host,
        "table_peak_bytes": None if card is None else card.host_link_bandwidth,
        "share_counted_on": LINK_SHARE,
    }


def _line(row: dict[str, Any]) -> str:
    found = row["measured"]
    if not row["name"].startswith(_STEP):
        return ", ".join(f"{key} {_short(value)}" for key, value in found.items() if value is not None)
    return (
        f"step {found['step_seconds'] * 1e3:9.2f} ms {percent(found['predicted_step_seconds'], found['step_seconds']):>9}  "
        f"recomputed block {found['block_seconds'] * 1e3:8.3f} ms "
        f"{percent(found['predicted_block_seconds'], found['block_seconds']):>9}"
    )


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_short(one)}" for key, one in value.items()) + "}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


PART = Part(
    name="clock",
    title="Time of a step, of a recomputed block, and the constants behind it",
    cases=cases,
    measure=measure,
    predict_again=predicted_again,
    line=_line,
    first=8,
    timed=True,
    limit_seconds=420,
)
