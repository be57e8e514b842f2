"""ViT-L/16 planned for six budgets on three cards: does it fit, does time never fall with the budget, how long does it take.

Effective batch 64, AdamW, bf16-mixed. For each card: the plan at every budget, with one planner going down the budgets as
a person turning the dial would, and one plan from a cold start in a process of its own. Then, with the microbatch pinned
to the whole batch: the fine-grained plan against the better of no checkpointing and checkpointing everywhere.

    python -m benchmarks.plans [--cards rtx-4090,...] [--budgets 24,16,...] [--no-cold]     (writes results/plans.json)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import results_file
from benchmarks.prepared import check_prepared
from snugfit.errors import DoesNotFitError
from snugfit.planner.constraints import Constraints
from snugfit.planner.places import place_for
from snugfit.planner.plan_result import Plan
from snugfit.planner.planner import Planner
from snugfit.recording.replay import replay
from snugfit.report.words import recipe_in_words
from snugfit.simulator.request import NamedModel
from snugfit.simulator.subjects import named_subject
from snugfit.units import GIB
from snugfit.workload import Workload

MODEL = NamedModel(spec="torchvision:vit_l_16")
WORKLOAD = Workload(batch_size=64)
CARDS = ("rtx-4090", "rtx-3090", "a100-40gb")
BUDGETS = (24, 16, 12, 8, 6, 4)
FINE_BUDGETS = (14, 12, 10, 8)
"""Budgets between what plain training and checkpointing of every block need."""
COLD_BUDGET = 8
HOST_BUDGET_BYTES = 64 * GIB


def planner_for(card: str, **pins: Any) -> Planner:
    constraints = Constraints(pins={"precision": "bf16-mixed", **pins}, host_budget_bytes=HOST_BUDGET_BYTES)
    return Planner(named_subject(MODEL, WORKLOAD), place_for(card), constraints)


def namesake() -> nn.Module:
    """A model of the same 24 blocks by the same names, small enough for a step on any machine."""
    from torchvision.models import VisionTransformer

    return VisionTransformer(image_size=32, patch_size=16, num_layers=24, num_heads=4, hidden_dim=32, mlp_dim=64)


def check_on_namesake(plan: Plan) -> None:
    """Prepares the plan and takes a step by each of its fallbacks."""
    batch = torch.randn(64, 3, 32, 32), torch.randint(0, 1000, (64,))

    def loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
        return F.cross_entropy(output, batch[1])

    check_prepared(namesake, plan, batch, {"loss": loss, "optimizer": WORKLOAD.optimizer, "batch_size": 64})


def described(plan: Plan, capacity_bytes: int) -> dict[str, Any]:
    through = replay(plan.estimate.trace, capacity_bytes=capacity_bytes).shortage is None
    return {
        "recipe": plan.recipe.to_mapping(defaults=False),
        "fits": through and plan.estimate.devices[0].fits,
        "total_bytes": plan.estimate.total_bytes,
        "host_bytes": plan.estimate.host_bytes,
        "step_seconds": plan.step_seconds,
        "slowdown": plan.slowdown,
        "margin_bytes": plan.margin_bytes,
    }


def budgets_of(card: str, budgets: tuple[int, ...]) -> list[dict[str, Any]]:
    rows = []
    with planner_for(card) as planner:
        for budget in budgets:
            row: dict[str, Any] = {"card": card, "budget_gib": budget}
            before, begin = len(planner.simulations.probes), time.perf_counter()
            try:
                plan = planner.at(budget * GIB)
                row.update(described(plan, planner.capacity_bytes(budget * GIB)))
                check_on_namesake(plan)
            except DoesNotFitError as error:
                row["error"] = str(error)
            row["seconds"] = round(time.perf_counter() - begin, 1)
            row["newly_simulated"] = len(planner.simulations.probes) - before
            rows.append(row)
            what = row.get("error") or f"{row['step_seconds']:.4f} s  {recipe_in_words(plan.recipe)}"
            print(f"{card} {budget} GiB: {what}  [{row['seconds']} s]", flush=True)
    return rows


def fine_grained(card: str, budgets: tuple[int, ...]) -> list[dict[str, Any]]:
    """The microbatch is the whole batch, and nothing moves to the host: only checkpointing is left."""
    rows = []
    pins = {"microbatch_size": None, "offload_activations": "none", "offload_optimizer": False}
    with planner_for(card, **pins, step_in_backward=False) as planner:
        for budget in budgets:
            capacity = planner.capacity_bytes(budget * GIB)
            try:
                plan = planner.at(budget * GIB)
            except DoesNotFitError:
                continue
            coarse = [
                probe.seconds
                for recipe, probe in planner.simulations.probes.items()
                if recipe.checkpoint in ("none", "all") and probe.need_bytes <= capacity
            ]
            if not coarse:
                continue
            row = {
                "card": card,
                "budget_gib": budget,
                "checkpoint": plan.recipe.to_mapping()["checkpoint"],
                "step_seconds": plan.step_seconds,
                "all_or_nothing_seconds": min(coarse),
                "faster_percent": round(100 * (min(coarse) / plan.step_seconds - 1), 2),
            }
            rows.append(row)
            print(f"{card} {budget} GiB, whole batch: {row['faster_percent']} % faster than all or nothing", flush=True)
    return rows


def cold(card: str) -> dict[str, Any]:
    """One plan in a fresh process, as a person would type it."""
    command = [
        sys.executable, "-m", "snugfit", "plan", MODEL.spec, "--batch-size", "64", "--precision", "bf16-mixed",
        "--budget", f"{COLD_BUDGET}GiB", "--device", card, "--host-budget", "64GiB", "--json",
    ]  # fmt: skip
    before, begin = os.times(), time.perf_counter()
    document = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    row = {
        "card": card,
        "budget_gib": COLD_BUDGET,
        "seconds": round(time.perf_counter() - begin, 1),
        "cpu_seconds": round(used, 1),
        "simulated": document["simulated"],
        "step_seconds": document["estimate"]["step_seconds"],
    }
    print(f"{card} from a cold start: {row['seconds']} s, {row['cpu_seconds']} s of CPU", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cards", default=",".join(CARDS))
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)))
    parser.add_argument("--no-cold", action="store_true")
    parser.add_argument("--no-fine", action="store_true")
    args = parser.parse_args()
    cards = args.cards.split(",")
    budgets = tuple(sorted(map(int, args.budgets.split(",")), reverse=True))
    rows = [row for card in cards for row in budgets_of(card, budgets)]
    fine = [] if args.no_fine else [row for card in cards[:1] for row in fine_grained(card, FINE_BUDGETS)]
    monotone = all(
        one["step_seconds"] <= other["step_seconds"] * (1 + 1e-9)
        for card in cards
        for one, other in zip(
            *(lambda mine: (mine, mine[1:]))([row for row in rows if row["card"] == card and "error" not in row]),
            strict=False,
        )
    )
    results = {
        "model": MODEL.spec,
        "effective_batch": 64,
        "precision": "bf16-mixed",
        "host_budget_bytes": HOST_BUDGET_BYTES,
        "all_fit": all(row.get("fits", False) for row in rows),
        "time_never_falls_with_the_budget": monotone,
        "rows": rows,
        "fine_grained": fine,
        "cold": [] if args.no_cold else [cold(card) for card in cards],
    }
    print(results_file.write("plans", results))
    print(json.dumps({name: results[name] for name in ("all_fit", "time_never_falls_with_the_budget")}))


if __name__ == "__main__":
    main()
