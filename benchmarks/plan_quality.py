"""Is the plan the best there is? Plans of three small models against every recipe of a list of 200 and more.

For each model the recipes are enumerated (sizes of microbatch, every way of checkpointing and offloading, ways of
updating) and simulated; at every budget the plan's predicted time is held against the fastest of them that fits, and the
plan never sees them. On the processor the ten recipes nearest the plan are also trained for real, each in turn, round
after round, and the rank correlation of predicted and measured times is reported.

    python -m benchmarks.plan_quality [--only NAME] [--no-timing]       (writes results/plan_quality.json)
    python -m benchmarks.plan_quality --large [NAME ...]    (large models on small cards: `by_hand.py`)
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import by_hand, results_file
from benchmarks.prepared import check_prepared
from snugfit.errors import DoesNotFitError, RecipeError
from snugfit.planner.constraints import Constraints
from snugfit.planner.places import place_for
from snugfit.planner.planner import Planner
from snugfit.planner.probe import Place, Probe, Simulations
from snugfit.recipe import Recipe
from snugfit.simulator.batch_shapes import skeleton_of
from snugfit.simulator.subjects import given_subject
from snugfit.workers.pool import Pool

SHARES = (0.9, 0.7, 0.5, 0.35)
"""Budgets, as shares of what plain training needs."""
NEAREST, ROUNDS, WARM_UP = 10, 7, 2
HOST_BUDGET_BYTES = 2**36


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(self.norm(x))


class Mixer(nn.Module):
    """Equal blocks on 64 tokens."""

    def __init__(self, width: int = 96, blocks: int = 8) -> None:
        super().__init__()
        self.stem = nn.Linear(48, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Funnel(nn.Module):
    """Blocks that differ: wide ones with many tokens first, later ones with few."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(48, 64)
        self.stages = nn.ModuleList(Block(width) for width in (64, 64, 96, 96, 160, 160))
        self.between = nn.ModuleDict({"2": nn.Linear(64, 96), "4": nn.Linear(96, 160)})
        self.head = nn.Linear(160, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for number, stage in enumerate(self.stages):
            if str(number) in self.between:
                x = self.between[str(number)](x.unflatten(1, (-1, 2)).mean(2))
            x = stage(x)
        return self.head(x.mean(1))


class Attending(nn.Module):
    """A small transformer of torch."""

    def __init__(self, width: int = 64, blocks: int = 6) -> None:
        super().__init__()
        self.stem = nn.Linear(48, width)
        layers = (nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(blocks))
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


MODELS: dict[str, tuple[type[nn.Module], int, str]] = {
    "mixer on cpu": (Mixer, 64, "cpu"),
    "funnel on rtx-3090": (Funnel, 1024, "rtx-3090"),
    "transformer on rtx-4090": (Attending, 1024, "rtx-4090"),
}
"""Name -> model, batch, device."""


def loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
    return F.cross_entropy(output, batch[1])


def shapes(batch: int) -> Any:
    return ((batch, 64, 48), torch.float32), ((batch,), torch.int64)


def real_batch(batch: int) -> Any:
    return torch.randn(batch, 64, 48), torch.randint(0, 10, (batch,))


def recipes(batch: int, blocks: tuple[str, ...], on_cpu: bool) -> Iterator[Recipe]:
    """Every recipe of the list."""
    sizes = [None, *(batch // n for n in (2, 3, 4, 5, 6, 8, 12, 16, 24, 32))]
    checkpoints: list[Any] = ["none", "all", "selective", "every:2"]
    checkpoints += [f"blocks:{n}" for n in range(1, len(blocks))]
    offloads: list[Any] = ["none"] if on_cpu else ["none", "all", "checkpoints", blocks[:1], blocks[-2:]]
    updates: list[dict[str, Any]] = [{}, {"step_in_backward": True}, {"optimizer_impl": "for-loop"}]
    if not on_cpu:
        updates += [{"offload_optimizer": True}]
    for size, checkpoint, offload, update in itertools.product(sizes, checkpoints, offloads, updates):
        if size is not None and update.get("step_in_backward"):
            continue  # a gradient that is used at once cannot add up
        try:
            yield Recipe(microbatch_size=size, checkpoint=checkpoint, offload_activations=offload, **update)
        except RecipeError:
            continue


def everything(name: str, place: Place, pool: Pool, limit: int) -> dict[Recipe, Probe]:
    """Simulates the list, thinned out evenly where it is longer than the limit."""
    model, batch, _ = MODELS[name]
    simulations = Simulations(subject_of(model, batch), place, pool)
    blocks = simulations.need(Recipe()).recorded.block_names
    listed = list(dict.fromkeys(recipes(batch, blocks, place.on_cpu)))
    step = max(1.0, len(listed) / limit)
    chosen = [listed[int(at * step)] for at in range(int(len(listed) / step))]
    for start in range(0, len(chosen), 8):
        simulations.simulate(chosen[start : start + 8])
    simulations.close()
    return simulations.probes


def subject_of(model: type[nn.Module], batch: int) -> Any:
    arguments = {"loss": loss, "optimizer": "adamw", "forward": None, "split": None, "loss_weight": "samples"}
    return given_subject(model, skeleton_of(shapes(batch)), arguments)


def compare(name: str, pool: Pool, limit: int) -> tuple[list[dict[str, Any]], dict[Recipe, Probe], list[int]]:
    model, batch, device = MODELS[name]
    place = place_for(device)
    known = everything(name, place, pool, limit)
    rows, plans = [], []
    for share in SHARES:
        # A planner of its own for every budget: none profits from what another one has seen.
        with Planner(
            subject_of(model, batch), place, Constraints(host_budget_bytes=HOST_BUDGET_BYTES), pool=pool
        ) as planner:
            plain = known[Recipe()].need_bytes
            budget = planner.budget_bytes(int(plain * share))
            capacity = planner.capacity_bytes(budget)
            fitting = [probe for probe in known.values() if probe.need_bytes <= capacity]
            row: dict[str, Any] = {"model": name, "share": share, "budget_bytes": budget, "listed": len(known)}
            row["listed_that_fit"] = len(fitting)
            try:
                plan = planner.at(budget)
            except DoesNotFitError:
                plan = None
            if plan is not None:
                best = min(fitting, key=lambda probe: probe.seconds, default=None)
                plans.append(planner.simulations.probes[plan.recipe].need_bytes)
                check_prepared(MODELS[name][0], plan, real_batch(batch), {"loss": loss, "optimizer": "adamw"})
                row |= {
                    "plan": plan.recipe.to_mapping(defaults=False),
                    "plan_seconds": plan.step_seconds,
                    "simulated": plan.simulated,
                    "best": None if best is None else best.recipe.to_mapping(defaults=False),
                    "best_seconds": None if best is None else best.seconds,
                    "over_best_percent": None
                    if best is None
                    else round(100 * (plan.step_seconds / best.seconds - 1), 3),
                }
            else:
                row["over_best_percent"] = None if not fitting else float("inf")
            rows.append(row)
            print(f"{name} {share:.0%}: {row.get('over_best_percent')} % over the best of {len(fitting)}", flush=True)
    return rows, known, plans


def timed(name: str, known: dict[Recipe, Probe], plan_need_bytes: int) -> dict[str, Any]:
    """Trains the ten recipes nearest the plan in memory, round after round, and ranks them."""
    from snugfit.training.prepare import prepare

    model, batch, _ = MODELS[name]
    near = sorted(
        (probe for probe in known.values() if probe.recipe.optimizer_impl is None),
        key=lambda probe: abs(probe.need_bytes - plan_need_bytes),
    )[:NEAREST]
    data = real_batch(batch)
    trainers = [prepare(model(), probe.recipe, loss=loss, optimizer="adamw", device="cpu") for probe in near]
    measured: list[list[float]] = [[] for _ in near]
    for turn in range(WARM_UP + ROUNDS):
        for trainer, times in zip(trainers, measured, strict=True):
            begin = time.process_time()
            trainer.step(data)
            if turn >= WARM_UP:
                times.append(time.process_time() - begin)
    seconds = [min(times) for times in measured]
    predicted = [probe.seconds for probe in near]
    return {
        "model": name,
        "recipes": [probe.recipe.to_mapping(defaults=False) for probe in near],
        "predicted_seconds": predicted,
        "measured_cpu_seconds": seconds,
        "rank_correlation": rank_correlation(predicted, seconds),
        "median_ratio": statistics.median(a / b for a, b in zip(predicted, seconds, strict=True)),
    }


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's, ties sharing their ranks."""

    def ranks(values: list[float]) -> list[float]:
        ordered = sorted(values)
        return [statistics.mean(at for at, value in enumerate(ordered) if value == mine) for mine in values]

    return statistics.correlation(ranks(one), ranks(other))


def _written() -> dict[str, Any]:
    """The results that are there."""
    found: dict[str, Any] = json.loads((results_file.RESULTS / "plan_quality.json").read_text(encoding="utf-8"))
    return found


def large(names: list[str]) -> None:
    """Puts rows of large models in the place of those of the same name; each keeps the day and machine it is from."""
    pool = Pool(2)
    for name in names:
        row = by_hand.compare(name, pool)
        print(f"{name}: {row['over_best_percent']} % over the best by hand of {row['listed']}", flush=True)
        results = _written()  # with the machine and the day of its other rows
        others = [one for one in results.get("large", ()) if one["model"] != name]
        results["large"] = [*others, {**row, "machine": results_file.machine()}]
        results_file.write("plan_quality", results)
    pool.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=MODELS)
    parser.add_argument("--limit", type=int, default=220, help="recipes of a model's list that are simulated")
    parser.add_argument("--no-timing", action="store_true")
    parser.add_argument("--large", nargs="*", choices=by_hand.CASES, help="only these large models; none named: all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.large is not None:
        return large(args.large or list(by_hand.CASES))
    names = [args.only] if args.only else list(MODELS)
    rows, timings = [], []
    pool = Pool(2)
    for name in names:
        mine, known, plans = compare(name, pool, args.limit)
        rows += mine
        if MODELS[name][2] == "cpu" and plans and not args.no_timing:
            timings.append(timed(name, known, plans[len(plans) // 2]))
            print(f"{name}: rank correlation {timings[-1]['rank_correlation']:.2f}", flush=True)
    pool.close()
    worst = max(row["over_best_percent"] for row in rows if row["over_best_percent"] is not None)
    print(f"worst: {worst} % over the best")
    results = {"worst_over_best_percent": worst, "rows": rows, "timed": timings, "large": _written().get("large", [])}
    print(results_file.write("plan_quality" if not args.only else "plan_quality-part", results))


if __name__ == "__main__":
    main()
