"""Makes `docs/accuracy.md`, the tables behind it and their figures from result files; nothing in the pages is typed.

python -m benchmarks.report        (also by `make docs`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.clock_page import clock_section
from benchmarks.communication_page import communication_section
from benchmarks.gpu.part import Place
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.rows import read_rows
from benchmarks.report.clock import clock
from benchmarks.report.events import traces
from benchmarks.report.faults import faults
from benchmarks.report.ladder import ladder
from benchmarks.report.memory import accuracy, figure
from benchmarks.report.overhead import overhead
from benchmarks.report.plans import plans
from benchmarks.report.published import guides, published
from benchmarks.report.ranks import ranks_section
from benchmarks.report.scripts import scripts
from benchmarks.report.tables import Row
from benchmarks.results_file import RESULTS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SUMMARY, TABLES = "accuracy.md", "accuracy"
"""The page that is read first, and the folder of the pages behind it."""
FIGURES = ROOT / "docs" / "figures"

_SECTIONS: dict[str, Callable[[Sequence[Row], str], str]] = {
    "accuracy": accuracy,
    "traces": traces,
    "ladder": ladder,
    "clock": clock,
    "plans": plans,
    "overhead": overhead,
    "faults": faults,
    "scripts": scripts,
}


def pages(results: Path = RESULTS) -> dict[str, str]:
    """Returns every page, by its path in `docs`: a summary, and the tables behind each of its parts.

    Args:
        results: Folder of all results.
    """
    found = folders(results)
    behind = {folder.name: place_section(folder) for folder in found} | {
        "clock": clock_section(results, FIGURES),
        "collectives": communication_section(results),
        "several_gpus": ranks_section(results),
        "vit_ladder": published(results),
        "bert_large": guides(results),
    }
    behind = {name: text for name, text in behind.items() if text}
    summary = [_intro(found), *(_summarised(name, text) for name, text in behind.items())]
    made = {f"{TABLES}/{name}.md": _page(text) for name, text in behind.items()}
    return {SUMMARY: "\n\n".join(summary) + "\n", **made}


def _intro(found: Sequence[Path]) -> str:
    """What is measured, and what is not."""
    count = len(PARTS["accuracy"].cases(Place(kind="cpu", card="cpu", torch_version="")))
    intro = (
        "# Accuracy of predictions\n\nMade by `make docs` from `benchmarks/results`; the rows are measured by `make bench` "
        "(CPU) and `make gpu` (a CUDA card), each in a process of its own. About half of the "
        f"{count} configurations are the validation half, named by a checksum of their names when they were listed: those "
        "rows are never used to improve predictions, and both halves are shown apart."
    )
    if any(not folder.name.startswith("cpu-") for folder in found):
        return intro + f"\n\nMeasured on: {', '.join(folder.name for folder in found)}."
    return intro + (
        "\n\n**No card has been measured yet.** Reserved bytes, the caching allocator, CUDA kernels and the clock of "
        "cards rest on torch's sources and the published numbers below; what follows was measured on a CPU, where the "
        "same code predicts bytes of tensors. What allocators of real cards recorded is in [published.md](published.md)."
    )


def _summarised(name: str, text: str) -> str:
    """The beginning of a part, and the row of all its configurations where it has one; its title leads to the tables."""
    title, told = text.split("\n\n")[:2]
    before, there, after = text.partition("\n| all |")
    if there:
        lines = before.splitlines()
        ruled = max(place for place, line in enumerate(lines) if line.startswith("|---"))
        told += "\n\n" + "\n".join([*lines[ruled - 1 : ruled + 1], f"| all |{after.splitlines()[0]}"])
    return f"## [{title.removeprefix('## ')}]({TABLES}/{name}.md)\n\n{told}"


def _page(section: str) -> str:
    """A part as a page of its own, in a folder under that of the figures."""
    lines = [line.removeprefix("#") if line.startswith("##") else line for line in section.splitlines()]
    return "\n".join(lines).replace("](figures/", "](../figures/") + "\n"


def folders(results: Path) -> list[Path]:
    """Returns the folders with results of this harness, cards first."""
    found = [path for path in results.iterdir() if path.is_dir() and any(path.glob("*.jsonl"))]
    return sorted(found, key=lambda path: (path.name.startswith("cpu-"), path.name))


def place_section(folder: Path) -> str:
    """Returns the section of one card or CPU."""
    rows = {name: read_rows(folder / f"{name}.jsonl") for name in PARTS}
    known = [row for found in rows.values() for row in found]
    dates = sorted(row["date"][:10] for row in known)
    newest = max(known, key=lambda row: row["date"])
    versions = ", ".join(f"{name} {version}" for name, version in newest["versions"].items())
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    parts = [f"## {folder.name}\n\nMeasured {when}; processor {newest['processor']}; {versions}."]
    drawn = FIGURES / f"accuracy-{folder.name}.png"
    good = [row for row in rows["accuracy"] if row.get("measured") and not row.get("error")]
    for name, found in rows.items():
        if not found:
            parts.append(f"### {PARTS[name].title}\n\nNot measured here.")
            continue
        parts.append(section(name, found, folder.name))
        if name == "accuracy" and figure(good, folder.name, drawn):
            parts.append(f"![error over measured bytes](figures/{drawn.name})")
    return "\n\n".join(parts)


def section(name: str, rows: Sequence[Row], folder: str) -> str:
    """Returns one part's section: its table, and what is missing with the reason.

    Args:
        name: The part.
        rows: All its rows.
        folder: Name of the folder they are from.
    """
    good = [row for row in rows if row.get("measured") and not row.get("error")]
    text = [f"### {PARTS[name].title}"]
    if good:
        text.append(_SECTIONS[name](good, folder))
    failed = [row for row in rows if row.get("error")]
    if failed:
        text.append("Rows that failed:\n\n" + "\n".join(f"- `{row['name']}`: {_short(row['error'])}" for row in failed))
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row.get("left_out"):
            by_reason.setdefault(_short(row["left_out"]), []).append(f"`{row['name']}`")
    if by_reason:
        text.append("Left out:\n\n" + "\n".join(f"- {', '.join(names)}: {why}" for why, names in by_reason.items()))
    return "\n\n".join(text)


def _short(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= 300 else line[:299] + "…"


def main() -> None:
    """Writes the pages, and takes away those of results that are gone."""
    made = pages()
    (DOCS / TABLES).mkdir(exist_ok=True)
    for path in (DOCS / TABLES).glob("*.md"):
        if f"{TABLES}/{path.name}" not in made:
            path.unlink()
    for name, text in made.items():
        (DOCS / name).write_text(text, encoding="utf-8")
    print(f"{SUMMARY} from {', '.join(folder.name for folder in folders(RESULTS)) or 'no results'}")
