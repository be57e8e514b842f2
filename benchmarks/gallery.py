"""The gallery "model x card": does it train there, by which recipe, how fast; with the command that says the same.

Every model of `gallery.yaml` is planned for every card at the batch that is written there: all of its weights (`full`), and
for language models with LoRA and QLoRA. What one card was simulated for is replayed and timed for the next. Rows are written
as they are found, and a row that is there is not made again, so the command may be stopped and typed again.

    python -m benchmarks.gallery [--only TEXT ...] [--minutes N] [--again]      (writes benchmarks/results/gallery.json)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.results_file import RESULTS, write
from snugfit.devices import Device, device_named
from snugfit.errors import DoesNotFitError, SnugfitError
from snugfit.planner.constraints import constraints_from
from snugfit.planner.places import place_for
from snugfit.planner.planner import Planner
from snugfit.planner.probe import Simulations
from snugfit.report.words import recipe_in_words
from snugfit.simulator.request import NamedModel
from snugfit.simulator.subjects import named_subject
from snugfit.units import GIB
from snugfit.workers.pool import Pool
from snugfit.workload import Workload

LIST = Path(__file__).parent / "gallery.yaml"
METHODS: dict[str, dict[str, str]] = {
    "full": {},
    "LoRA": {"adapter": "lora"},
    "QLoRA": {"adapter": "lora", "quantize": "nf4"},
}
"""What is trained, as fields of the recipe that are pinned."""
ALLOWED = ["exact", "rounding"]
"""Fidelity of what a plan may use beside that."""


def rows_wanted() -> Iterator[tuple[dict[str, Any], str, list[str]]]:
    """Yields each model with each of its methods, and the cards."""
    listed = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    for model in listed["models"]:
        for method in METHODS if model.get("adapters") else ("full",):
            yield model, method, listed["cards"]


def spec_of(model: dict[str, Any]) -> str:
    """The model as it is typed."""
    return str(model["model"]) if "model" in model else f"hf:examples/configs/{model['config']}.json"


def command_of(model: dict[str, Any], method: str, card: str) -> str:
    """The command line that gives the row's plan."""
    options = {"batch-size": model["batch_size"], **model.get("options", {}), **METHODS[method]}
    written = " ".join(f"--{name} {value}" for name, value in options.items())
    return f"snugfit plan {spec_of(model)} {written} --allow {ALLOWED[-1]} --device {card}"


def rows_of(model: dict[str, Any], method: str, cards: list[Device], pool: Pool) -> Iterator[dict[str, Any]]:
    """Plans a model for one card after the other, the largest first, and yields their rows."""
    options = {name.replace("-", "_"): value for name, value in model.get("options", {}).items()}
    subject = named_subject(NamedModel(spec=spec_of(model), **options), Workload(batch_size=model["batch_size"]))
    constraints = constraints_from(allow=ALLOWED, given=METHODS[method], device="card")
    before: Simulations | None = None
    for card in sorted(cards, key=lambda one: -(one.memory_bytes or 0)):
        assert card.memory_bytes is not None
        began = time.process_time()
        row: dict[str, Any] = {
            "model": model["name"], "family": model["family"], "method": method, "card": card.name,
            "batch_size": model["batch_size"], "command": command_of(model, method, card.name),
        }  # fmt: skip
        with Planner(subject, place_for(card), constraints, pool=pool, before=before) as planner:
            try:
                plan = planner.at(card.memory_bytes)
            except DoesNotFitError as error:
                least = getattr(error, "smallest_budget_bytes", {})  # also of what the row does not allow
                row |= {
                    "fits": False,
                    "least_bytes": min((least[one] for one in ALLOWED if one in least), default=None),
                }
            except SnugfitError as error:
                row |= {"fits": None, "why": str(error)}
            else:
                probe = planner.simulations.probes[plan.recipe]
                row |= {
                    "fits": True,
                    "recipe": plan.recipe.to_mapping(defaults=False),
                    "words": recipe_in_words(plan.recipe),
                    "least_bytes": planner.budget_bytes(probe.need_bytes),
                    "host_bytes": probe.host_bytes,
                    "step_seconds": plan.step_seconds,
                    "fidelity": plan.fidelity.level,
                }
            before = planner.simulations
        print(f"{row['model']}, {method}, {card.name}: {told(row)}; {time.process_time() - began:.0f} s", flush=True)
        yield row


def told(row: dict[str, Any]) -> str:
    """A row's answer in a few words."""
    if row["fits"]:
        return f"from {row['least_bytes'] / GIB:.1f} GiB on, {row['step_seconds']:.2f} s, {row['words']}"
    if row["fits"] is None:
        return str(row["why"])[:100]
    return f"no; {row['least_bytes'] / GIB:.1f} GiB would do" if row["least_bytes"] else "no"


def main() -> None:
    """Plans what is missing, or what was asked for again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="models and methods whose name contains one of these")
    parser.add_argument("--minutes", type=float, help="begin no further row after so many minutes")
    parser.add_argument("--again", action="store_true", help="make rows again that are there")
    args = parser.parse_args()
    path = RESULTS / "gallery.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    rows = {(row["model"], row["method"], row["card"]): row for row in kept}
    order = [(model["name"], method, card) for model, method, cards in rows_wanted() for card in cards]
    end = None if args.minutes is None else time.monotonic() + 60 * args.minutes
    with contextlib.closing(Pool(2)) as pool:
        for model, method, names in rows_wanted():
            wanted = args.only is None or any(text in f"{model['name']} {method}" for text in args.only)
            missing = [name for name in names if args.again or (model["name"], method, name) not in rows]
            if not wanted or not missing:
                continue
            for row in rows_of(model, method, [device_named(name) for name in missing], pool):
                rows[row["model"], row["method"], row["card"]] = row
                write("gallery", {"rows": [rows[key] for key in order if key in rows]})
                if end is not None and time.monotonic() > end:
                    return


if __name__ == "__main__":
    main()
