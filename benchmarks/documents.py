"""Makes the parts of the documents that hold numbers or repeat the code: results, fields, commands, rooms.

The ladder of `make demo` is taken over into `benchmarks/results/demo_ladder.json` with `--demo runs/demo/ladder.json`.

    python -m benchmarks.documents [--demo runs/demo/ladder.json]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import first_plan
from benchmarks.cli_page import cli_page
from benchmarks.cold_page import cold_page
from benchmarks.compiled_tables import compiled_table, published_compiled_table
from benchmarks.gallery_page import gallery_page
from benchmarks.gpu.rows import read_rows
from benchmarks.plan_tables import plans_table, quality_table, training_table
from benchmarks.published_page import published_page
from benchmarks.report.memory import distribution, grouped
from benchmarks.results_file import RESULTS, write
from benchmarks.rooms import diagram
from benchmarks.scripts_page import pasted_table, scripts_table
from benchmarks.strangers_page import strangers_page
from benchmarks.zoo_page import zoo_page
from snugfit.contexts import readings_of
from snugfit.device_kinds import KINDS, DeviceKind
from snugfit.devices import DEVICES
from snugfit.fields import FieldInfo, field_infos
from snugfit.recipe import Recipe
from snugfit.units import MIB, format_bytes
from snugfit.workload import Workload

ROOT = Path(__file__).parent.parent


def demo_table(results: dict[str, Any]) -> str:
    """The demo's table, one row a rung."""
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


def described(info: FieldInfo) -> str:
    """A field's docstring, and its values where that names only some of them."""
    named = all(choice in info.doc for choice in info.choices)
    return info.doc if named else f"{info.doc} One of {', '.join(info.choices)}."


def fields_page() -> str:
    """Every field of the recipe and the training settings, from their docstrings."""
    made = "Made from the docstrings of the techniques' fields and of `workload.py` by `make docs`."
    parts = [f"# Recipe and training settings\n\n{made}\n"]
    for cls, title in (
        (Recipe, "Recipe: how a step is held in memory"),
        (Workload, "Training settings: what is learned"),
    ):
        parts.append(f"## {title}\n")
        for info in field_infos(cls).values():
            parts.append(f"- `{info.name}` (default `{info.default!r}`): {described(info)}")
        parts.append("")
    return "\n".join(parts)


def kinds_table() -> str:
    """What each kind of device has, a column a field."""
    fields = [field.name for field in dataclasses.fields(DeviceKind) if field.name not in ("name", "seen")]
    words = {None: "", False: "", True: "yes"}
    lines = ["| " + " | ".join(["kind", *(name.replace("_", " ") for name in fields), "tried"]) + " |"]
    lines.append("|" + "---|" * (len(fields) + 2))
    for kind in KINDS.values():
        has = [getattr(kind, name) for name in fields]
        lines.append(" | ".join([f"| `{kind.name}`", *(words.get(one, str(one)) for one in has), f"{kind.seen} |"]))
    return "\n".join(lines)


def contexts_table() -> str:
    """What CUDA takes on each card of the table."""
    lines = ["| card | MiB | range | readings |", "|---|---|---|---|"]
    for card in DEVICES:
        if card.context is None or card.compute_capability is None:
            continue
        least, most = (size / MIB for size in card.context.range_bytes)
        found = len(readings_of(card.name)) or "none: as its generation"
        lines.append(f"| {card.name} | {card.context_bytes / MIB:.0f} | {least:.0f} to {most:.0f} | {found} |")
    return "\n".join(lines)


def mutants_table(results: dict[str, Any]) -> str:
    """How many waits, events, marks and releases are missed where they are taken out, a row a file."""
    rows = results["mutants"]
    lines = ["| file | taken out | noticed |", "|---|---|---|"]
    for file in dict.fromkeys(row["file"] for row in rows):
        noticed = [row["noticed_by"] is not None for row in rows if row["file"] == file]
        lines.append(f"| `{file}` | {len(noticed)} | {sum(noticed)} |")
    lines.append(f"| all | {len(rows)} | {results['noticed']} |")
    unseen = [f"- `{row['file']}`, `{row['taken_out']}`: {row['reason']}" for row in rows if row["noticed_by"] is None]
    machine = results["machine"]
    said = f"Tried {machine['date']} with torch {machine['torch']}."
    return "\n".join(
        [*lines, "", said + (" Noticed by nothing:" if unseen else ""), *(["", *unseen] if unseen else [])]
    )


def bytes_lines(results: dict[str, Any]) -> str:
    """How many configurations of the accuracy list take the predicted bytes on a pretend card."""
    rows = [row for row in results["rows"] if "predicted" in row]
    off = [row for row in rows if any(row["counted"][name] != size for name, size in row["predicted"].items())]
    limits = [limit for row in rows for limit in row["limits"] if limit["percent"] < 100]
    found = sum(limit["predicted"] == limit["failed"] for limit in limits)
    lines = [
        f"Of {len(rows)} configurations of the accuracy list, {len(rows) - len(off)} allocate and reserve the predicted "
        f"bytes on the pretend card, to the byte; on cards with 60 to 90 % of that the predicted operator fails in {found} "
        f"of {len(limits)}. The others differ by copies that the check of microbatches makes in a first step, and by masks "
        "of ones, which transformers drops where they have values:",
        "",
    ]
    for row in off:
        parts = [
            f"{name.removesuffix('_bytes')} {size:,} for {row['counted'][name]:,}"
            for name, size in row["predicted"].items()
        ]
        lines.append(f"- {row['name']}: predicted {', '.join(parts)} bytes")
    machine = results["machine"]
    return "\n".join([*lines, "", f"Counted {machine['date']} with torch {machine['torch']}."])


def exported_table(results: dict[str, Any]) -> str:
    """What DeepSpeed trains to by an exported config, beside what snugfit trains to by the recipe."""
    lines = ["| exported as | updated by | apart, of the largest change | allowed |", "|---|---|---|---|"]
    for row in results["rows"]:
        if "left_out" in row:
            lines.append(f"| {row['case']} | - | not run: {row['left_out']} | |")
        else:
            share = f"{row['difference_of_change']:.1e}" if row["difference_of_change"] else "equal"
            lines.append(f"| {row['case']} | {row['updated_by']} | {share} | {row['tolerance']:.0e} |")
    machine = results["machine"]
    instead = [
        f"- {row['case']}: {row['difference_of_change']:.1e} of the largest change apart" for row in results["instead"]
    ]
    where = f"DeepSpeed {results['deepspeed']}, torch {machine['torch']}, {machine['processor']}, {machine['date']};"
    said = f"{where} {results['steps']} steps, {results['processes']} processes."
    return "\n".join([*lines, "", said, "In place of what is exported:", "", *instead])


def imported_table(results: dict[str, Any]) -> str:
    """How many configurations of other projects were read."""
    lines = [
        "| configurations of | read | of these, every field understood | refused | no such configuration |",
        "|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        lines.append(f"| {row['of']} | {row['read']} | {row['understood']} | {row['refused']} | {row['none']} |")
    most = ", ".join(f"`{name}` ({count})" for name, count in results["most_refused"])
    left = ", ".join(f"`{name}` ({count})" for name, count in results["most_not_understood"])
    said = [
        f"Refused most: {most}. Named most as not understood: {left}.",
        f"{results['machine']['date']}; `python -m benchmarks.imported_configs`.",
    ]
    return "\n".join([*lines, "", *said])


def tables_table(results: dict[str, Any]) -> str:
    """In which versions of the tools exported files were loaded."""
    lines = ["| tool | files loaded | refused by snugfit | a step on this CPU |", "|---|---|---|---|"]
    for tool, row in results["tools"].items():
        step = "-" if row["loss_of_a_step"] is None else f"taken, loss {row['loss_of_a_step']:.3f}"
        failed = "".join(f"; {name} fails: {why}" for name, why in row["failed"].items())
        lines.append(f"| {tool} {row['version']} | {row['loaded']}{failed} | {', '.join(row['refused'])} | {step} |")
    row = next(iter(results["tools"].values()))
    return "\n".join([*lines, "", f"torch {row['torch']}, {row['date']}; `python -m benchmarks.table_exports`."])


def speed_table(results: dict[str, Any]) -> str:
    """How long commands take that predict or plan a large model on several GPUs."""
    lines = ["| typed | seconds | of processors | recipes simulated |", "|---|---|---|---|"]
    rows = results["several_gpus"].values()
    for row in rows:
        lines.append(
            f"| `{row['typed']}` | {row['wall_seconds']:.1f} | {row['processor_seconds']:.1f} | {row.get('simulated', 1)} |"
        )
    machines = sorted({(row["machine"]["processor"], row["machine"]["torch"], row["machine"]["date"]) for row in rows})
    where = "; ".join(f"{processor}, two cores, torch {torch}, {date}" for processor, torch, date in machines)
    return "\n".join([*lines, "", f"{where}; `python benchmarks/estimate_speed.py --gpus`."])


def build_lines(results: dict[str, Any]) -> str:
    """What a process holds while it builds a packed model from files, and what is predicted."""
    measured, *_ = [row for row in results["rows"] if "rss_bytes" in row]
    lines = [
        f"Measured: a {measured['model']} from {format_bytes(measured['files_bytes'])} of shards, with LoRA on NF4, one "
        f"short step on cpu: {format_bytes(measured['rss_bytes'])} resident at most, of which imports are "
        f"{format_bytes(results['imports_rss_bytes'])}. Predicted for the host of a machine with a card, beside imports:",
        "",
        *(f"- {row['model']}: {format_bytes(row['host_bytes'])}" for row in results["rows"]),
    ]
    machine = results["machine"]
    where = f"{machine['processor']}, torch {machine['torch']}, {machine['date']}; `python -m benchmarks.build_host`."
    return "\n".join([*lines, "", where])


def cards_table() -> str:
    """Predicted beside measured memory on each card that was at hand, by family of models."""
    found = []
    for place in sorted(RESULTS.glob("*/place.json")):
        card = json.loads(place.read_text(encoding="utf-8"))
        rows = read_rows(place.parent / "accuracy.jsonl") if card["kind"] != "cpu" else []
        groups = grouped(rows, lambda row: [row["settings"]["family"]])
        if not rows:
            continue
        folder = place.parent.name
        found.append(f"{card['card']}, torch {card['torch_version']} ([all rows](docs/accuracy/{folder}.md)):\n")
        found += [
            "| models | runs | allocated, median | worst | reserved, median | worst |",
            "|---|---|---|---|---|---|",
        ]
        for name, some in [*groups, ("all", rows)]:
            both = [distribution(some, f"{what}_bytes") for what in ("allocated", "reserved")]
            if both[0] and both[1]:
                numbers = [
                    f"{one['median']:.2%} | {max(one['over'], one['under'], key=abs):+.1%}" for one in both if one
                ]
                found.append(f"| {name} | {both[0]['rows']} | {' | '.join(numbers)} |")
        found.append("")
    return "\n".join(found).strip()


TABLES: tuple[tuple[str, str, Callable[[dict[str, Any]], str]], ...] = (
    ("docs/demo.md", "demo_ladder", demo_table),
    ("README.md", "first_plan", first_plan.block),
    ("docs/planning.md", "plans", plans_table),
    ("docs/planning.md", "plan_quality", quality_table),
    ("docs/planning.md", "compiled", compiled_table),
    ("docs/planning.md", "published_compiled", published_compiled_table),
    ("docs/text.md", "text_training", training_table),
    ("docs/export.md", "deepspeed_export", exported_table),
    ("docs/export.md", "table_exports", tables_table),
    ("docs/import.md", "imported_configs", imported_table),
    ("docs/several_gpus.md", "estimate_speed", speed_table),
    ("docs/scripts.md", "scripts", scripts_table),
    ("docs/scripts.md", "pasted_plans", pasted_table),
    ("docs/text.md", "build_host", build_lines),
    ("docs/devices.md", "card_mutants", mutants_table),
    ("docs/devices.md", "card_bytes", bytes_lines),
)
"""Document, result, and what makes the text between the marks of that name."""

PAGES: tuple[tuple[str, str, Callable[[dict[str, Any]], str]], ...] = (
    ("zoo", "zoo", zoo_page),
    ("strangers", "strangers", strangers_page),
    ("published_memory", "published", published_page),
    ("cold_answers", "answer_times", cold_page),
)
"""Result, page that is made of it alone, and what makes it."""


def fill(document: Path, name: str, text: str) -> None:
    """Replaces what stands between `<!-- NAME: ... -->` and `<!-- /NAME -->`.

    Args:
        document: The file.
        name: The marks' name.
        text: What is to stand there.

    Raises:
        ValueError: The document has no such marks.
    """
    place = re.compile(rf"(<!-- {name}:.*?-->\n).*?(<!-- /{name} -->)", re.S)
    changed, count = place.subn(lambda found: f"{found[1]}{text}\n{found[2]}", document.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError(f"{document.name} needs the marks of {name} once, and has them {count} times.")
    document.write_text(changed, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--demo", type=Path, help="take over this ladder.json as the demo's result first")
    args = parser.parse_args()
    if args.demo:
        write("demo_ladder", json.loads(args.demo.read_text(encoding="utf-8")))
    for file, name, table in TABLES:
        results = RESULTS / f"{name}.json"
        if results.exists():
            fill(ROOT / file, name, table(json.loads(results.read_text(encoding="utf-8"))))
    fill(ROOT / "README.md", "cards", cards_table())
    (ROOT / "docs" / "figures" / "rooms.svg").write_text(diagram(), encoding="utf-8")
    fill(ROOT / "docs" / "devices.md", "device_kinds", kinds_table())
    fill(ROOT / "docs" / "devices.md", "contexts", contexts_table())
    for name, page, made in PAGES:
        results = RESULTS / f"{name}.json"
        if results.exists():
            text = made(json.loads(results.read_text(encoding="utf-8")))
            (ROOT / "docs" / f"{page}.md").write_text(text, encoding="utf-8")
    gallery = ROOT / "docs" / "gallery" / "index.html"
    gallery.parent.mkdir(exist_ok=True)
    gallery.write_text(gallery_page(RESULTS), encoding="utf-8")
    (ROOT / "docs" / "recipe.md").write_text(fields_page(), encoding="utf-8")
    (ROOT / "docs" / "reference" / "cli.md").write_text(cli_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
