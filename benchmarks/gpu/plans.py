"""Is the run the fastest? For ten pairs of model and budget, what tuning keeps, the plan and others that fit, all timed.

The others are at the same precision, and learn the same: none cuts the batch of a model that normalises by it. They leave as
much of the budget free as a plan does. Which of them fit is decided by a replay of their simulation at the card's size, on a
CPU by their tensor bytes and what they keep in the host pool, which is memory of the same process; on a card the process
gets no more memory than the budget, and what then runs out of it does not count as fitting. On a CPU with one thread the
process's own time counts, so that other processes of the machine do not, and `snugfit calibrate` comes before the plan.
All are timed in turn, round after round (on a CPU after each step). On a card they are compared within each round, and the
median of the rounds' ratios counts; on a CPU the median of each one's steps.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.configurations import Configuration, line
from benchmarks.gpu.part import Case, Part, Place
from benchmarks.gpu.turn import take_turn

if TYPE_CHECKING:
    from benchmarks.gpu.training_run import TrainingRun
    from snugfit.planner.plan_result import Plan
    from snugfit.recipe import Recipe
    from snugfit.recording.recording import Recording
    from snugfit.workers.pool import Pool

PAIRS: tuple[tuple[Configuration, float], ...] = (
    (line("vit_b_16", scale=2), 0.5),
    (line("llama_1b", precision="bf16-true"), 0.6),
    (line("vit_b_16", scale=2), 0.2),
    (line("bert_large", scale=2), 0.5),
    (line("llama_1b", precision="bf16-true"), 0.2),
    (line("bert_large", scale=2), 0.2),
    (line("gpt2"), 0.4),
    (line("swin_t", scale=2), 0.4),
    (line("resnet50", scale=2), 0.4),
    (line("convnext_tiny", precision="bf16-true"), 0.5),
)
"""Model, and the budget as a share of the way from what the leanest ordinary recipe needs (every block checkpointed, one
sample at a time) to what plain training needs."""
MOST_OTHERS = 14
"""Other recipes that are timed at most."""
WARM_UP = 2
ROUNDS = {"cuda": 3, "cpu": 12}


def cases(place: Place) -> Sequence[Case]:
    """Returns the pairs.

    Args:
        place: Where they are timed.
    """
    return [
        Case(
            name=_name(configuration, share),
            settings={"samples": configuration.samples(place.kind), "share": share, "others": MOST_OTHERS},
            packages=configuration.packages,
        )
        for configuration, share in PAIRS
    ]


def _name(configuration: Configuration, share: float) -> str:
    return f"{configuration.name}, budget {share:.0%} of the way to plain"


def other_recipes(plain: Recipe, samples: int, blocks: int) -> list[Recipe]:
    """Returns recipes at the precision of the plain one, from those that change little to those that save most.

    Args:
        plain: The plain recipe.
        samples: Samples of the batch.
        blocks: Repeated blocks of the model.
    """
    checkpoints = ["none", *(f"blocks:{max(1, round(blocks * part))}" for part in (0.25, 0.5, 0.75)), "all"]
    sizes = [size for size in (None, samples // 2, samples // 4, samples // 8) if size is None or size >= 1]
    found: dict[Recipe, None] = {}
    for size in sizes:
        for checkpoint in checkpoints:
            found[plain.replace(microbatch_size=size, checkpoint=checkpoint)] = None
    for checkpoint in checkpoints:
        found[plain.replace(step_in_backward=True, checkpoint=checkpoint)] = None
        found[plain.replace(loss_impl="chunked", checkpoint=checkpoint)] = None
    found[plain.replace(offload_activations="all")] = None
    found[plain.replace(offload_optimizer=True, checkpoint="all")] = None
    return list(found)


def measure(name: str, place: Place) -> dict[str, Any]:
    """Plans, and times the plan and others that fit.

    Args:
        name: The pair.
        place: Where.

    Returns:
        `plan` with its recipe, predicted and measured seconds; `others` likewise; how the plan compares with the fastest.
    """
    from benchmarks.gpu.training_run import calibrated

    with calibrated(place):
        return _planned_and_timed(name, place)


def _planned_and_timed(name: str, place: Place) -> dict[str, Any]:
    import torch

    import snugfit
    from benchmarks.gpu.training_run import built, prediction_of, record
    from benchmarks.prepared import check_prepared
    from snugfit.techniques.blocks import find_blocks
    from snugfit.workers.pool import Pool

    configuration, share = next(pair for pair in PAIRS if _name(*pair) == name)
    run = configuration.run(place.kind)
    with torch.device("meta"):
        batch, blocks = run.batch(), len(find_blocks(run.build()))
    pool = Pool(2)
    try:
        plain = record(run, place, pool, threads=None)
        lean = run.recipe.replace(checkpoint="all", microbatch_size=1)
        if not _learns_the_same(lean, run.recipe, plain):
            lean = run.recipe.replace(checkpoint="all")
        leanest = record(dataclasses.replace(run, recipe=lean), place, pool, threads=None)
        most, least = (
            found["reserved_bytes"] or found["allocated_bytes"]
            for found in (prediction_of(one, place) for one in (plain, leanest))
        )
        budget = int(least + share * (most - least))
        started = time.perf_counter()
        plan = snugfit.plan(
            run.build,
            batch,
            budget=budget,
            device="cpu" if place.kind == "cpu" else "local",
            pin=run.recipe.to_mapping(defaults=False),
            pool=pool,
            **run.arguments,
        )
        planned_in = time.perf_counter() - started
        recipes = [
            one
            for one in other_recipes(run.recipe, configuration.samples(place.kind), blocks)
            if _learns_the_same(one, run.recipe, plain)
        ]
        candidates = _that_fit(configuration, recipes, place, pool, budget - plan.margin_bytes, plan.recipe)
    finally:
        pool.close()
    take_turn()
    check_prepared(
        lambda: built(run, torch.device(place.kind)),
        plan,
        run.batch(),
        run.arguments,
        device=place.kind,
        tolerance=1e-2,
    )
    _limit(place, budget)
    kept, tuning_steps = _tuned(run, plan, place)
    known = {plan.recipe: plan.step_seconds} | {one.recipe: one.step_seconds for one in plan.rivals}
    others = [row for row in candidates if row["recipe"] != kept]
    rows = [{"recipe": one, "predicted_seconds": known[one]} for one in dict.fromkeys((kept, plan.recipe))]
    rows += [{"recipe": one, "predicted_seconds": known[one]} for one in known if one not in (kept, plan.recipe)]
    rows += [row for row in others if row["recipe"] not in known]
    rounds = _rounds(configuration, [row["recipe"] for row in rows], place)
    times = [None if None in one else statistics.median(filter(None, one)) for one in zip(*rounds, strict=True)]
    found = [
        {
            "recipe": row["recipe"].to_mapping(defaults=False),
            "predicted_seconds": row["predicted_seconds"],
            "seconds": seconds,
        }
        for row, seconds in zip(rows, times, strict=True)
    ]
    fitting = [number for number, seconds in enumerate(times) if seconds is not None]
    planned = next(number for number, row in enumerate(rows) if row["recipe"] == plan.recipe)
    return {
        "budget_bytes": budget,
        "planned_in_seconds": planned_in,
        "tuning_steps": tuning_steps,
        "tuned": found[0],
        "plan": found[planned],
        "others": [row for number, row in enumerate(found) if number not in (0, planned)],
        "others_that_fit": len(fitting) - len({0, planned}),
        "tuned_over_fastest": behind_fastest(rounds, 0, fitting) if times[0] is not None else None,
        "plan_over_fastest": behind_fastest(rounds, planned, fitting) if times[planned] is not None else None,
        "rank_correlation": rank_correlation(
            [(row["predicted_seconds"], row["seconds"]) for row in found if row["predicted_seconds"] and row["seconds"]]
        ),
    }


def _tuned(run: TrainingRun, plan: Plan, place: Place) -> tuple[Recipe, int]:
    """The recipe that a run by the plan keeps, and the steps in which it is found."""
    import torch

    import snugfit
    from benchmarks.gpu.training_run import built

    device = torch.device(place.kind)
    torch.manual_seed(0)
    trainer = snugfit.prepare(built(run, device), plan, device=device, tune=True, **run.arguments)
    batch = run.batch()
    while trainer.tuning is not None:
        trainer.step(batch)
    trainer.finish()
    return trainer.recipe, trainer.steps_done


def _learns_the_same(recipe: Recipe, plain: Recipe, recorded: Recording) -> bool:
    """Whether a recipe costs no fidelity that the plain one has."""
    from snugfit.errors import RecipeError
    from snugfit.fidelity import fidelity

    assert recorded.workload is not None
    try:
        return fidelity(recipe, recorded.workload).reasons.keys() <= fidelity(plain, recorded.workload).reasons.keys()
    except RecipeError:
        return False


def _that_fit(
    configuration: Configuration, recipes: list[Recipe], place: Place, pool: Pool, budget: int, planned: Recipe
) -> list[dict[str, Any]]:
    """Other recipes whose simulation fits the budget, spread over those that need much and little of it."""
    from benchmarks.gpu.training_run import card_of, record
    from snugfit.errors import SnugfitError
    from snugfit.operators.host_speeds import host_speeds
    from snugfit.recording.clock import clock
    from snugfit.recording.cpu_clock import cpu_clock
    from snugfit.recording.replay import replay
    from snugfit.recording.tensor_bytes import TensorBytes

    run, card = configuration.run(place.kind), card_of(place)
    found: list[dict[str, Any]] = []
    for recipe in recipes:
        if recipe == planned or len(found) >= MOST_OTHERS:
            continue
        try:
            recording = record(dataclasses.replace(run, recipe=recipe), place, pool, threads=None)
        except SnugfitError:
            continue  # the recipe does not go with this model
        if place.kind == "cpu":
            fits = replay(recording.trace, TensorBytes()).peak_with_host_bytes <= budget
        else:
            fits = replay(recording.trace, None, budget).shortage is None
        if not fits:
            continue
        if place.kind == "cpu":
            timing = cpu_clock(recording.trace, host_speeds())
        else:
            timing = None if card is None else clock(recording.trace, card)
        found.append({"recipe": recipe, "predicted_seconds": None if timing is None else timing.step_seconds})
    return found


def _limit(place: Place, budget: int) -> None:
    import torch

    if place.kind == "cuda":
        torch.cuda.set_per_process_memory_fraction(budget / torch.cuda.get_device_properties(0).total_memory)


def behind_fastest(rounds: Sequence[Sequence[Any]], one: int, others: Sequence[int]) -> float:
    """Returns how many times as long as the fastest recipe one of them takes, 1 where it is the fastest.

    Args:
        rounds: Of each round, the seconds of each recipe.
        one: Which.
        others: The recipes that it is compared with.
    """
    return max([1.0, *(statistics.median(seconds[one] / seconds[other] for seconds in rounds) for other in others)])


def _rounds(configuration: Configuration, recipes: list[Recipe], place: Place) -> list[list[float | None]]:
    """Seconds of a step by each recipe, in each round; of a CPU, one row: the median of each one's steps."""
    if place.kind != "cpu":
        return [[_step_seconds(configuration, recipe, place) for recipe in recipes] for _ in range(ROUNDS[place.kind])]
    import torch

    import snugfit
    from benchmarks.gpu.training_run import built

    run, device = configuration.run("cpu"), torch.device("cpu")
    torch.manual_seed(0)
    trainers = [snugfit.prepare(built(run, device), recipe, device=device, **run.arguments) for recipe in recipes]
    batch = run.batch()
    now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    steps: list[list[float]] = [[] for _ in trainers]
    numbers = list(range(len(trainers)))
    order = random.Random(0)
    for _ in range(WARM_UP + ROUNDS["cpu"]):
        order.shuffle(numbers)  # what ran before leaves its caches and heap to the next
        for number in numbers:
            trainers[number].step(batch)
            started = now()
            trainers[number].step(batch)
            steps[number].append(now() - started)
    for trainer in trainers:
        trainer.finish()
    return [[statistics.median(one[WARM_UP:]) for one in steps]]


def _step_seconds(configuration: Configuration, recipe: Recipe, place: Place) -> float | None:
    """Median seconds of a step on a card; None where it runs out of memory."""
    import gc

    import torch

    import snugfit
    from benchmarks.gpu.training_run import built, wait

    device = torch.device(place.kind)
    run = configuration.run(place.kind)
    gc.collect()
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    try:
        trainer = snugfit.prepare(built(run, device), recipe, device=device, **run.arguments)
        batch, seconds = run.batch(), []
        for _ in range(7):
            wait(device)
            started = time.perf_counter()
            trainer.step(batch)
            wait(device)
            seconds.append(time.perf_counter() - started)
        trainer.finish()
    except (snugfit.DoesNotFitError, torch.OutOfMemoryError):
        return None
    return statistics.median(seconds[2:]) if trainer.recipe == recipe else None


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Returns Spearman's rank correlation.

    Args:
        pairs: Two numbers of each thing.

    Returns:
        From -1 to 1; None for fewer than three things.
    """
    if len(pairs) < 3:
        return None
    ranks = [
        {index: rank for rank, index in enumerate(sorted(range(len(pairs)), key=lambda one: pairs[one][side]))}
        for side in (0, 1)
    ]
    count = len(pairs)
    distance = sum((ranks[0][index] - ranks[1][index]) ** 2 for index in range(count))
    return 1 - 6 * distance / (count * (count**2 - 1))


def _line(row: dict[str, Any]) -> str:
    found = row["measured"]
    behind, tuned = (
        "did not fit" if found[name] is None else f"{found[name]:.3f} x the fastest"
        for name in ("plan_over_fastest", "tuned_over_fastest")
    )
    correlation = found["rank_correlation"]
    return (
        f"{tuned}, found in {found['tuning_steps']} steps; the plan {behind}; of {found['others_that_fit']} others; "
        f"rank correlation {'-' if correlation is None else f'{correlation:.2f}'}; planned in "
        f"{found['planned_in_seconds']:.1f} s: {found['plan']['recipe']}"
    )


PART = Part(
    name="plans",
    title="The plan against other recipes that fit",
    cases=cases,
    measure=measure,
    line=_line,
    first=2,
    timed=True,
    limit_seconds=420,
)
