"""Plan, prepare, step, and a step by each fallback: the advertised path on small models of all kinds, for real on the CPU.

For each model and kind of device three budgets (80, 60 and 40 % of the way from the leanest exact recipe to plain training)
are planned. Each plan is prepared, takes a step, and changes over to each of its fallbacks in the middle of the run, a step
by each; where the recipes are exact, every loss is held against plain training's. Recipes planned for a card are prepared on
the CPU too: what they hold in memory is not the same there, what they compute is.

    python -m benchmarks.plan_prepare [--only PART_OF_A_NAME] [--devices cpu,rtx-3090] [--minutes 20] [--again]

What is there in results/plan_prepare.json already is kept, so a run that was cut short goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch

from benchmarks import results_file
from benchmarks.plan_prepare_subjects import SUBJECTS, Subject
from benchmarks.prepared import SEED, check_prepared, quietly
from snugfit.errors import DoesNotFitError, SnugfitError
from snugfit.planner.constraints import constraints_from
from snugfit.planner.places import place_for
from snugfit.planner.planner import Planner
from snugfit.planner.probe import Place
from snugfit.planner.smallest import Smallest
from snugfit.simulator.batch_shapes import skeleton_of
from snugfit.simulator.subjects import given_subject
from snugfit.workers.pool import Pool

SHARES = (0.8, 0.6, 0.4)
"""Budgets, as shares of the way from the leanest recipe to plain training."""
DEVICES = ("cpu", "rtx-3090")
TOLERANCE = 1e-3
"""Most that a loss may differ as a part of plain training's: float32, after up to a dozen updates by AdamW, which makes the
noise of gradients that are nearly zero as large as any."""
HOST_BUDGET = "16GiB"


def planned(name: str, subject: Subject, place: Place, pool: Pool, shares: tuple[float, ...] = SHARES) -> list[Any]:
    """Plans a model at each budget, and takes the steps.

    Args:
        name: The model's name.
        subject: The model.
        place: Where it is planned for.
        pool: Workers.
        shares: Budgets.

    Returns:
        A row for each budget.
    """
    with quietly():
        torch.manual_seed(SEED)
        model, batch = subject.build(), subject.batch()
    common = {"model": name, "device": place.card.name}
    arguments = {"forward": None, "split": None, "loss_weight": "samples", "loss": None, **subject.arguments}
    constraints = constraints_from(pin=subject.pins, host_budget=HOST_BUDGET)
    rows = []
    with (
        quietly(),
        Planner(given_subject(model, skeleton_of(batch), arguments), place, constraints, pool=pool) as planner,
    ):
        try:
            most = planner.simulations.need(planner.constraints.base()).need_bytes
            leanest = Smallest(planner.space()).start("exact")
            assert leanest is not None
        except SnugfitError as error:
            return [{**common, "share": share, "error": str(error)} for share in shares]
        for share in shares:
            budget = planner.budget_bytes(int(leanest.need_bytes + share * (most - leanest.need_bytes)))
            row: dict[str, Any] = {**common, "share": share, "budget_bytes": budget}
            try:
                plan = planner.at(budget)
                row |= {"simulated": plan.simulated, "recipe": plan.recipe.to_mapping(defaults=False)}
                row |= check_prepared(subject.build, plan, batch, subject.arguments, tolerance=TOLERANCE)
            except DoesNotFitError as error:
                row["does_not_fit"] = str(error)
            except (SnugfitError, AssertionError) as error:
                row["error"] = f"{type(error).__name__}: {error}"
            rows.append(row)
    return rows


def line(row: dict[str, Any]) -> str:
    """Returns a row as a line for the console."""
    name = f"{row['model']} on {row['device']}, {row['share']:.0%}"
    if "error" in row:
        return f"{name}: {row['error'].splitlines()[0][:300]}"
    if "does_not_fit" in row:
        return f"{name}: does not fit"
    return f"{name}: {len(row['fallbacks'])} fallbacks, worst loss {row.get('worst_difference', float('nan')):.1e} off"


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns what all rows come to."""
    good = [row for row in rows if "losses" in row and "error" not in row]
    return {
        "models": len({row["model"] for row in good}),
        "plans": len(rows),
        "prepared_and_trained": len(good),
        "did_not_fit": sum("does_not_fit" in row for row in rows),
        "errors": sum("error" in row for row in rows),
        "fallback_steps": sum(len(row["fallbacks"]) for row in good),
        "plans_without_fallback": sum(not row["fallbacks"] for row in good),
        "worst_difference": max((row["worst_difference"] for row in good if "worst_difference" in row), default=None),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="models whose name holds this")
    parser.add_argument("--devices", default=",".join(DEVICES))
    parser.add_argument("--minutes", type=float, default=60.0, help="no model is begun after that")
    parser.add_argument("--again", action="store_true", help="also what is in the results already")
    args = parser.parse_args()
    torch.set_num_threads(1)
    path = results_file.RESULTS / "plan_prepare.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    begun, pool = time.monotonic(), Pool(1)
    for device in args.devices.split(","):
        place = place_for(device)
        for name, subject in SUBJECTS.items():
            there = any((row["model"], row["device"]) == (name, place.card.name) for row in rows)
            late = time.monotonic() - begun > 60 * args.minutes
            if args.only not in name or late or (there and not args.again):
                continue
            rows = [row for row in rows if (row["model"], row["device"]) != (name, place.card.name)]
            started = time.monotonic()
            for row in planned(name, subject, place, pool):
                rows.append(row)
                print(line(row), flush=True)
            print(f"  {time.monotonic() - started:.0f} s", flush=True)
            results_file.write("plan_prepare", {**summary(rows), "tolerance": TOLERANCE, "rows": rows})
    pool.close()
    print(json.dumps(summary(rows)))


if __name__ == "__main__":
    main()
