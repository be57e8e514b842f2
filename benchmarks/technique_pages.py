"""Makes `docs/techniques/*.md`: each technique's essay, its recipe fields, and what was measured.

The text is the docstring of the technique's package and the numbers are those of `benchmarks/results/techniques.json`;
neither is typed here.

    python -m benchmarks.technique_pages
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.documents import described
from benchmarks.results_file import RESULTS
from snugfit.cli.techniques import essay
from snugfit.fields import field_infos
from snugfit.recipe import Recipe
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.declaration import Technique
from snugfit.units import format_bytes

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "techniques"
MEASURE = "`python -m benchmarks.techniques` makes one"


def measured(technique: Technique, results: dict[str, Any]) -> str:
    row = next((row for row in results["rows"] if row["technique"] == technique.name), None)
    if row is None:
        known = isinstance(technique.example, str)
        return f"No measurement is on this page: {technique.example if known else MEASURE}."
    before, after = row["peak_tensor_bytes"]
    machine = results["machine"]
    lines = [
        "| | without | with |",
        "|---|---|---|",
        f"| recipe | `{row['without'] or 'plain'}` | `{row['with']}` |",
        f"| peak tensor bytes, weights before it excluded | {format_bytes(before)} | {format_bytes(after)} |",
    ]
    if any(row["host_tensor_bytes"]):
        first, second = row["host_tensor_bytes"]
        lines.append(f"| host bytes | {format_bytes(first)} | {format_bytes(second)} |")
    lines.append(f"| time of a step | 1 | {row['time_ratio']:.2f} |")
    where = machine["gpu"] or f"CPU ({machine['processor']}, {machine['threads']} threads)"
    return (
        "\n".join(lines)
        + f"\n\n{row['model']}, batch {results['batch_size']}, AdamW, on {where}, torch {machine['torch']}, "
        + f"{machine['date']}; `python -m benchmarks.techniques`."
    )


def page(technique: Technique, results: dict[str, Any]) -> str:
    fields = "\n".join(f"- `{name}`: {described(field_infos(Recipe)[name])}" for name in technique.fields)
    rows = ", ".join(map(str, technique.rows))
    return (
        f"# {technique.name}\n\n{essay(technique)}\n\n## Recipe\n\n{fields}\n\nFidelity: {technique.level}. "
        f"Rows {rows} of the list of techniques.\n\n## Measured\n\n{measured(technique, results)}\n"
    )


def main() -> None:
    results = json.loads((RESULTS / "techniques.json").read_text(encoding="utf-8"))
    PAGES.mkdir(parents=True, exist_ok=True)
    for technique in TECHNIQUES:
        (PAGES / f"{technique.name}.md").write_text(page(technique, results), encoding="utf-8")
    print(f"{len(TECHNIQUES)} pages in {PAGES.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
