"""Makes the parts of the documents that hold numbers or repeat the code: README's table and the recipe's fields.

The ladder of `make demo` is taken over into `benchmarks/results/demo_ladder.json` with `--demo runs/demo/ladder.json`.

    python -m benchmarks.documents [--demo runs/demo/ladder.json]
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from benchmarks.results_file import RESULTS, write
from snugfit.fields import field_infos
from snugfit.recipe import Recipe
from snugfit.units import format_bytes
from snugfit.workload import Workload

ROOT = Path(__file__).parent.parent


def demo_table(results: dict[str, Any]) -> str:
    """README's table, one row a rung."""
    first = results["rungs"][0]["measured"]["peak_tensor_bytes"]
    lines = ["| rung | fidelity | peak tensor bytes | less | test accuracy |", "|---|---|---|---|---|"]
    for rung in results["rungs"]:
        peak = rung["measured"]["peak_tensor_bytes"]
        accuracy = rung["metrics"]["test_accuracy"]
        level = rung["fidelity"]["level"]
        lines.append(f"| {rung['name']} | {level} | {format_bytes(peak)} | {first / peak:.1f} x | {accuracy:.2%} |")
    machine = results["machine"]
    return "\n".join(lines) + (
        f"\n\nMeasured {machine['date']} on a CPU ({machine['processor']}), torch {machine['torch']}; accuracies on the "
        "digits that scikit-learn ships. On a CPU without 16-bit units the 16-bit rungs save memory, not time."
    )


def fields_page() -> str:
    """Every field of the recipe and the training settings, from their docstrings."""
    parts = [
        "# Recipe and training settings\n\nMade from the docstrings of `recipe.py` and `workload.py` by `make docs`.\n"
    ]
    for cls, title in (
        (Recipe, "Recipe: how a step is held in memory"),
        (Workload, "Training settings: what is learned"),
    ):
        parts.append(f"## {title}\n")
        for info in field_infos(cls).values():
            parts.append(f"- `{info.name}` (default `{info.default!r}`): {info.doc}")
        parts.append("")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--demo", type=Path, help="take over this ladder.json as the demo's result first")
    args = parser.parse_args()
    if args.demo:
        write("demo_ladder", json.loads(args.demo.read_text(encoding="utf-8")))
    table = demo_table(json.loads((RESULTS / "demo_ladder.json").read_text(encoding="utf-8")))
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    place = re.compile(r"(<!-- demo:.*?-->\n).*?(<!-- /demo -->)", re.S)
    readme.write_text(place.sub(lambda found: f"{found[1]}{table}\n{found[2]}", text), encoding="utf-8")
    (ROOT / "docs" / "recipe.md").write_text(fields_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
