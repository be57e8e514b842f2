"""The gallery as one static page with filters, from `results/gallery.json`; beside each row how far off its kind was."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.gallery import rows_wanted
from benchmarks.gpu.rows import read_rows
from benchmarks.report.memory import distribution, grouped

TEMPLATE = Path(__file__).parent / "gallery.html"


def gallery_page(results: Path) -> str:
    """Returns the page; `results`: the folder of all results."""
    found = json.loads((results / "gallery.json").read_text(encoding="utf-8"))
    errors = errors_of(results)
    rows = [
        {**row, "error": errors.get(row["family"], "no run of this kind was measured on a card")}
        for row in found["rows"]
    ]
    for row in rows:
        row.pop("recipe", None)
    made = f"{len(rows)} of {sum(len(cards) for *_, cards in rows_wanted())} answers are there, {found['machine']['date']}."
    data = json.dumps({"rows": rows, "made": made}, separators=(",", ":")).replace("</", "<\\/")
    return TEMPLATE.read_text(encoding="utf-8").replace("__DATA__", data)


def errors_of(results: Path) -> dict[str, str]:
    """Family of models -> how far predicted memory was off where it was measured on a card, in words."""
    rows = [row for path in sorted(results.glob("nvidia-*/accuracy.jsonl")) for row in read_rows(path)]
    found = {}
    for family, its in grouped(rows, lambda row: [row["settings"]["family"]]):
        spread = distribution(its, "reserved_bytes")
        if spread is not None:
            found[family] = (
                f"{family}: reserved memory was {spread['median']:.1%} off in the median and "
                f"{max(spread['over'], spread['under'], key=abs):+.1%} at worst, in {spread['rows']} runs on a card"
            )
    return found
