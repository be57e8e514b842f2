"""Ten runs compared event by event: every allocation that was not predicted, and every predicted one that did not happen.

The real events are those of the CUDA caching allocator's memory history, or of torch's CPU allocator; each belongs to the
operator in whose run it fell (`benchmarks.gpu.operator_events`). The rows say what to fix next, ranked by bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.configurations import BY_NAME, cases_named
from benchmarks.gpu.part import Case, Part, Place
from snugfit.units import format_bytes

if TYPE_CHECKING:
    from benchmarks.gpu.operator_events import Taken
    from benchmarks.gpu.training_run import TrainingRun

RUNS = (
    "vit_b_16 plain",
    "resnet50 checkpoint=all precision=bf16-true",
    "llama_1b checkpoint=all offload_activations=checkpoints precision=bf16-true",
    "lstm plain",
    "swin_t checkpoint=all",
    "bert_base precision=16-mixed",
    "convnext_tiny stochastic_rounding=True precision=bf16-true",
    "gpt2 adapter=lora",
    "t5_small precision=bf16-mixed",
    "mixtral precision=bf16-true",
)
"""Configurations that are compared: ten architectures, each under other techniques, so that any beginning of the list shows
kernels that the rest does not. They are of the tuning half, since what is seen here is used to improve predictions."""
_SHOWN = 3
"""Operators that a console line names."""


def cases(place: Place) -> Sequence[Case]:
    """Returns the ten runs.

    Args:
        place: Where they are measured.
    """
    return cases_named(RUNS, place)


def measure(name: str, place: Place) -> dict[str, Any]:
    """Trains two steps with an evaluation between them, watched, and compares with the simulation.

    Args:
        name: The configuration's name.
        place: Where.

    Returns:
        `trace_diff.Difference` as plain data.
    """
    from benchmarks.gpu.operator_events import predicted_taken
    from benchmarks.gpu.trace_diff import compare
    from benchmarks.gpu.training_run import record
    from snugfit.workers.pool import Pool

    run = BY_NAME[name].run(place.kind)
    pool = Pool()
    try:
        predicted = predicted_taken(record(run, place, pool).trace)
    finally:
        pool.close()
    return compare(watched(run, place), predicted).to_plain()


def watched(run: TrainingRun, place: Place) -> list[Taken]:
    """Trains for as many steps as the simulation, and returns what each operator took.

    Args:
        run: What is trained.
        place: Where.
    """
    import torch

    import snugfit
    from benchmarks.gpu.operator_events import OperatorEvents
    from benchmarks.gpu.training_run import built
    from benchmarks.held_out import take_course
    from snugfit.measure.allocator_events import warm_up
    from snugfit.phases import phase
    from snugfit.simulator.session import STEPS
    from snugfit.training.course import Observer

    device = torch.device(place.kind)
    torch.manual_seed(0)
    if device.type == "cpu":
        warm_up()
    events = OperatorEvents(device)
    with events:
        with phase("build"):
            model = built(run, device)
        trainer = snugfit.prepare(model, run.recipe, device=device, **run.arguments)
        events.modules.watch(trainer.model)

        class Steps(Observer):
            def after_step(self, steps_done: int) -> None:
                # Its evaluation belongs to a step, and the next batch to the next.
                if not run.evaluate or steps_done > 1:
                    events.step = steps_done

            def after_evaluation(self) -> None:
                events.step = 1

        take_course(trainer, run.batch, run.arguments, steps=STEPS, evaluate=run.evaluate, observer=Steps())
    return events.taken()


def _line(row: dict[str, Any]) -> str:
    found = row["measured"]
    share = found["matched_bytes"] / max(1, found["block_bytes"])
    most = ", ".join(
        f"{one['operator']} {one['kind']} {format_bytes(one['bytes'])}" for one in found["operators"][:_SHOWN]
    )
    return (
        f"{share:8.3%} of {format_bytes(found['block_bytes'])} in {found['blocks']} blocks predicted; "
        f"{format_bytes(found['not_happened_bytes'])} predicted only; most bytes: {most or 'nothing'}"
    )


PART = Part(
    name="traces",
    title="Runs compared event by event",
    cases=cases,
    measure=measure,
    line=_line,
    first=4,
    timed=False,
    limit_seconds=180,
)
