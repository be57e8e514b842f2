"""Makes `docs/accuracy.md` and its figures from the result files of `benchmarks/gpu`; nothing in the page is typed.

python -m benchmarks.report        (also by `make docs`)
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.clock_page import clock_section
from benchmarks.gpu.part import TUNING, VALIDATION, Place
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.rows import read_rows
from benchmarks.gpu.subjects import STAND_INS, described
from benchmarks.results_file import RESULTS
from snugfit.units import format_bytes

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
FIGURES = ROOT / "docs" / "figures"
WORST = 10
Row = dict[str, Any]
METRICS = (("allocated_bytes", "allocated"), ("reserved_bytes", "reserved"))
"""What is compared: key of a row and its word; on a CPU allocated bytes are those of tensors, and nothing is reserved."""


def folders(results: Path) -> list[Path]:
    """Returns the folders with results of this harness, cards first."""
    found = [path for path in results.iterdir() if path.is_dir() and any(path.glob("*.jsonl"))]
    return sorted(found, key=lambda path: (path.name.startswith("cpu-"), path.name))


def error(row: Row, key: str) -> float | None:
    """Returns predicted over measured, less 1; None where one of them is missing."""
    predicted, measured = row.get("predicted") or {}, row.get("measured") or {}
    if not predicted.get(key) or not measured.get(key):
        return None
    return float(predicted[key] / measured[key] - 1)


def distribution(rows: Iterable[Row], key: str) -> dict[str, Any] | None:
    """Returns the spread of the errors of rows; None where there is none."""
    errors = [one for one in (error(row, key) for row in rows) if one is not None]
    if not errors:
        return None
    return {
        "rows": len(errors),
        "median": statistics.median(abs(one) for one in errors),
        "over": max(0.0, *errors),
        "under": min(0.0, *errors),
        "within_2_percent": sum(abs(one) <= 0.02 + 1e-9 for one in errors),
    }


def _percent(value: float) -> str:
    return f"{100 * value:+.2f} %"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table of Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)])


def distributions(groups: Iterable[tuple[str, Sequence[Row]]], key: str, what: str) -> str:
    """Returns a table of the spread of errors by group."""
    found = []
    for name, rows in groups:
        spread = distribution(rows, key)
        if spread is not None:
            found.append(
                (
                    name,
                    str(spread["rows"]),
                    f"{100 * spread['median']:.2f} %",
                    _percent(spread["over"]),
                    _percent(spread["under"]),
                    f"{spread['within_2_percent']} of {spread['rows']}",
                )
            )
    return table([what, "rows", "median error", "worst over", "worst under", "within 2 %"], found) if found else ""


def grouped(rows: Sequence[Row], names: Callable[[Row], Iterable[str]]) -> list[tuple[str, list[Row]]]:
    """Returns rows by the names each of them goes by, the largest group first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        for name in names(row):
            found.setdefault(name, []).append(row)
    return sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))


def techniques(row: Row) -> list[str]:
    """Returns the recipe fields of an accuracy row, each with its value; `plain` where there are none."""
    recipe = row["settings"]["recipe"]
    found = [f"{field}={value}" if isinstance(value, str) else field for field, value in recipe.items()]
    optimizer = row["settings"]["training"].get("optimizer")
    return [*found, *([f"optimizer={optimizer}"] if optimizer else [])] or ["plain"]


def accuracy(rows: Sequence[Row], folder: str) -> str:
    """Returns the part of the page about predicted and measured memory."""
    parts = []
    for key, word in METRICS:
        if all(error(row, key) is None for row in rows):
            continue
        halves = [("all", rows)]
        halves += [(half, [row for row in rows if row.get("half") == half]) for half in (VALIDATION, TUNING)]
        if folder.startswith("cpu-") and not parts:
            full = sorted({row["settings"]["model"] for row in rows} - STAND_INS.keys())
            parts.append(
                "On a CPU most models are small stand-ins of the same structure, with "
                f"{min(STAND_INS.values()) / 1e6:.2g} to {max(STAND_INS.values()) / 1e6:.2g} million parameters, so their "
                "bytes are not those of the models that they are named after."
                + (f" Of full size are {', '.join(full)}." if full else "")
            )
        title = "Tensor bytes" if folder.startswith("cpu-") else f"{word.capitalize()} bytes"
        parts.append(f"**{title}**\n\n" + distributions(halves, key, "half"))
        parts.append(distributions(grouped(rows, lambda row: [row["settings"]["family"]]), key, "family"))
        parts.append(distributions(grouped(rows, techniques), key, "technique"))
        parts.append(f"The {WORST} rows with the largest error:\n\n" + worst(rows, key, folder))
    host = [row for row in rows if folder.startswith("cpu-") and row["measured"]["host_bytes"]]
    if host:
        equal = sum(row["predicted"]["host_bytes"] == row["measured"]["host_bytes"] for row in host)
        parts.append(f"Bytes in the host pool are predicted exactly in {equal} of {len(host)} rows that use it.")
    return "\n\n".join(parts)


def _named(row: Row, folder: str) -> str:
    """A row's name, and what model it really is where that is a small one of the same structure."""
    what = described(row["settings"].get("model", ""), "cpu" if folder.startswith("cpu-") else "cuda")
    return f"`{row['name']}`" + (f" ({what})" if what else "")


def worst(rows: Sequence[Row], key: str, folder: str) -> str:
    """Returns a table of the rows with the largest errors."""
    found = sorted(((abs(one), row) for row in rows if (one := error(row, key)) is not None), key=lambda pair: -pair[0])
    return table(
        ["configuration", "half", "measured", "predicted", "error", "predicted peak at"],
        [
            (
                _named(row, folder),
                row.get("half", ""),
                format_bytes(row["measured"][key]),
                format_bytes(row["predicted"][key]),
                _percent(row["predicted"][key] / row["measured"][key] - 1),
                f"{row['predicted']['peak_phase']}, `{row['predicted']['peak_operator']}`",
            )
            for _, row in found[:WORST]
        ],
    )


def figure(rows: Sequence[Row], folder: str, path: Path) -> bool:
    """Draws error over measured bytes, the halves apart; returns whether there was anything to draw."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    key = "allocated_bytes" if folder.startswith("cpu-") else "reserved_bytes"
    points = [
        (row["measured"][key], 100 * one, row.get("half")) for row in rows if (one := error(row, key)) is not None
    ]
    if not points:
        return False
    chart, axes = pyplot.subplots(figsize=(7, 3.6), dpi=110)
    for half, marker, colour in ((VALIDATION, "o", "#1f77b4"), (TUNING, "x", "#ff7f0e")):
        chosen = [point for point in points if point[2] == half]
        axes.scatter(
            [x / 2**20 for x, _, _ in chosen],
            [y for _, y, _ in chosen],
            marker=marker,
            c=colour,
            s=18,
            label=half,
            alpha=0.8,
        )
    axes.axhspan(-2, 2, color="#2ca02c", alpha=0.12, label="within 2 %")
    axes.axhline(0, color="#888888", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1.0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ticks = percent_ticks(y for _, y, _ in points)
    axes.set_ylim(1.3 * ticks[0], 1.3 * ticks[-1])
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g} %" if value else "0 %"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("measured MiB, " + ("tensors" if key == "allocated_bytes" else "reserved"))
    axes.set_ylabel("predicted less measured")
    axes.set_title(folder, fontsize=10)
    axes.legend(fontsize=8)
    chart.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    chart.savefig(path, metadata={"Software": None})
    pyplot.close(chart)
    return True


def percent_ticks(errors: Iterable[float]) -> list[float]:
    """Returns where the axis of errors has labels: plain percentages on both sides, as far as the errors reach."""
    reach = max((abs(one) for one in errors), default=0.0)
    steps = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]
    shown = steps[: next((at for at, step in enumerate(steps) if step >= reach), len(steps) - 1) + 1]
    shown = shown if len(shown) >= 3 else steps[:3]
    return [-step for step in reversed(shown)] + [0.0, *shown]


def traces(rows: Sequence[Row], folder: str) -> str:
    """Returns the part of the page about runs compared event by event."""
    totals: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        for one in row["measured"]["operators"]:
            sums = totals.setdefault((one["operator"], one["kind"]), [0, 0])
            sums[0] += one["not_predicted_bytes"]
            sums[1] += one["not_happened_bytes"]
    ranked = sorted(totals.items(), key=lambda item: -sum(item[1]))[:15]
    runs = table(
        ["run", "blocks", "bytes taken", "predicted", "not predicted", "predicted only"],
        [
            (
                _named(row, folder),
                str(found["blocks"]),
                format_bytes(found["block_bytes"]),
                f"{100 * found['matched_bytes'] / found['block_bytes']:.2f} %",
                format_bytes(found["not_predicted_bytes"]),
                format_bytes(found["not_happened_bytes"]),
            )
            for row in rows
            for found in (row["measured"],)
        ],
    )
    kinds = {"kept": "results", "inside": "inside"}
    operators = table(
        ["operator", "memory", "not predicted", "predicted only"],
        [
            (f"`{operator}`", kinds[kind], format_bytes(missed), format_bytes(phantom))
            for (operator, kind), (missed, phantom) in ranked
        ],
    )
    return (
        f"{runs}\n\nWhat differs most, over these runs together (`results` were still there when the operator ended, "
        f"`inside` was taken and given back within it):\n\n{operators}"
    )


def ladder(rows: Sequence[Row], folder: str) -> str:
    """Returns the part of the page about the guides' ladder."""
    key = "allocated_bytes" if folder.startswith("cpu-") else "reserved_bytes"
    return table(
        ["rung", "measured", "predicted", "error", "ms a sample", "published GB", "published minutes"],
        [
            (
                row["name"],
                format_bytes(row["measured"][key]),
                format_bytes(row["predicted"][key]),
                _percent(row["predicted"][key] / row["measured"][key] - 1),
                f"{1e3 * row['measured']['sample_seconds']:.2f}",
                *(str(row["settings"].get(name, "")) for name in ("published_reserved_gb", "published_minutes")),
            )
            for row in rows
        ],
    ) + (
        "\n\nOn a CPU the model is a small one of the same structure, so the published numbers are only for the order."
        if folder.startswith("cpu-")
        else ""
    )


def clock(rows: Sequence[Row], folder: str) -> str:
    """Returns the part of the page about time."""
    steps = [row for row in rows if row["name"].startswith("step: ")]
    constants = [row for row in rows if not row["name"].startswith("step: ")]

    def pair(found: Row, key: str) -> tuple[str, str]:
        measured, predicted = found[key], found[f"predicted_{key}"]
        shown = f"{1e3 * measured:.2f}"
        return shown, "-" if predicted is None or measured <= 0 else _percent(predicted / measured - 1)

    lines = [
        (
            f"`{row['name'].removeprefix('step: ')}`",
            *pair(row["measured"], "step_seconds"),
            *pair(row["measured"], "checkpointed_step_seconds"),
            *pair(row["measured"], "block_seconds"),
        )
        for row in steps
    ]
    head = [
        "step",
        "ms",
        "predicted",
        "all blocks checkpointed, ms",
        "predicted",
        "one block recomputed, ms",
        "predicted",
    ]
    parts = [table(head, lines)] if lines else []
    if constants:
        parts.append(
            table(
                ["constant", "measured and counted on"],
                [
                    (row["name"].removeprefix("constant: "), f"`{json.dumps(_rounded(row['measured']))}`")
                    for row in constants
                ],
            )
        )
    return "\n\n".join(parts)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items() if one not in (None, {})}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def faults(rows: Sequence[Row], folder: str) -> str:
    """Returns the part of the page about faults."""
    return table(
        ["fault", "", "numbers"],
        [
            (
                row["name"],
                "passed" if row["measured"]["passed"] else "**not passed**",
                f"`{json.dumps({k: v for k, v in _rounded(row['measured']).items() if k not in ('passed', 'message')})}`",
            )
            for row in rows
        ],
    )


def plans(rows: Sequence[Row], folder: str) -> str:
    """Returns the part of the page about plans and other recipes."""
    return table(
        ["model and budget", "planned recipe", "plan, ms", "fastest other, ms", "plan over fastest", "others that fit",
         "rank correlation"],
        [
            (
                row["name"],
                f"`{found['plan']['recipe']}`",
                *(
                    "-" if seconds is None else f"{1e3 * seconds:.1f}"
                    for seconds in (
                        found["plan"]["seconds"],
                        min((one["seconds"] for one in found["others"] if one["seconds"] is not None), default=None),
                    )
                ),
                "-" if found["plan_over_fastest"] is None else f"{found['plan_over_fastest']:.3f}",
                str(found["others_that_fit"]),
                "-" if found["rank_correlation"] is None else f"{found['rank_correlation']:.2f}",
            )
            for row in rows
            for found in (row["measured"],)
        ],
    )  # fmt: skip


def overhead(rows: Sequence[Row], folder: str) -> str:
    """Returns the part of the page about the cost of our step."""
    hand = [row for row in rows if row["name"].startswith("by hand: ")]
    others = [row for row in rows if not row["name"].startswith("by hand: ")]
    parts = []
    if hand:
        parts.append(
            table(
                ["loop by hand", "by hand, ms", "ours, ms", "median ratio", "quartiles", "peak by hand", "our peak"],
                [
                    (
                        row["name"].removeprefix("by hand: "),
                        f"{1e3 * found['hand_step_seconds']:.2f}",
                        f"{1e3 * found['our_step_seconds']:.2f}",
                        f"{found['ratio_median']:.4f}",
                        " to ".join(f"{one:.3f}" for one in found["ratio_quartiles"]),
                        format_bytes(found["hand_peak_bytes"]),
                        format_bytes(found["our_peak_bytes"]),
                    )
                    for row in hand
                    for found in (row["measured"],)
                ],
            )
        )
    if others:
        parts.append(
            table(
                ["trainer", "their samples/s", "our samples/s", "their peak", "our peak"],
                [
                    (
                        row["name"],
                        f"{found['their_samples_per_second']:.1f}",
                        f"{found['our_samples_per_second']:.1f}",
                        format_bytes(found["their_peak_bytes"]),
                        format_bytes(found["our_peak_bytes"]),
                    )
                    for row in others
                    for found in (row["measured"],)
                ],
            )
        )
    return "\n\n".join(parts)


_SECTIONS: dict[str, Callable[[Sequence[Row], str], str]] = {
    "accuracy": accuracy,
    "traces": traces,
    "ladder": ladder,
    "clock": clock,
    "plans": plans,
    "overhead": overhead,
    "faults": faults,
}


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


def published(results: Path) -> str:
    """Returns the section about the published ladder."""
    found = json.loads((results / "published.json").read_text(encoding="utf-8"))
    rows = [
        (
            row["name"],
            f"{row['published_reserved_gb']:.2f}",
            f"{row['simulated_reserved_gb']:.2f}",
            f"{row['difference_percent']:+.1f} %",
        )
        for row in found["rungs"]
    ]
    return (
        "## The published ViT-L/16 ladder\n\n"
        f"Reserved memory as its source printed it (torch {found['published_torch']}, one GPU), beside the simulation of "
        f"the same steps, written by hand (torch {found['torch']}, {found['date']}; `python -m benchmarks.published`). "
        "Nothing in the package is fitted to these rows.\n\n"
        + table(["rung", "published GB", "simulated GB", "difference"], rows)
    )


def guides(results: Path) -> str:
    """Returns the section about the published table of bert-large, nothing where it was not predicted."""
    path = results / "guides.json"
    if not path.is_file():
        return ""
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = [row for row in found["rows"] if "then" in row]
    if not rows:
        return ""

    def difference(total: int, row: Row) -> str:
        return f"{100 * (total / row['published_bytes'] - 1):+.1f} %"

    return (
        "## The published bert-large table\n\n"
        "What the driver counted on a V100-16GB when the guide was written, beside the simulation of the same rungs with "
        "the CUDA context. Today's step needs less in the rungs of batch 4. Up to torch 1.10 gradients were zeroed in "
        "place, so that they were alive during the forward pass, and softmax kept its input for the backward pass. Both "
        "are in the sources of that time; with the step written so by hand (`benchmarks/guides_then.py`) these rungs agree "
        "as well. The guide does not name its torch, so that it was that old is concluded from the agreement. Nothing else "
        f"is fitted (torch {rows[0]['then']['torch_version']}; `python -m benchmarks.guides`).\n\n"
        + table(
            ["rung", "published MiB", "today's step", "gradients zeroed", "and softmax of then", "MiB"],
            [
                (
                    row["name"],
                    row["published"].split()[0],
                    difference(row["total_bytes"], row),
                    difference(row["then"]["zeroed_only_total_bytes"], row),
                    difference(row["then"]["total_bytes"], row),
                    f"{row['then']['total_bytes'] / 2**20:.0f}",
                )
                for row in rows
            ],
        )
    )


def page(results: Path = RESULTS) -> str:
    """Returns the whole page.

    Args:
        results: Folder of all results.
    """
    found = folders(results)
    cards = [folder for folder in found if not folder.name.startswith("cpu-")]
    count = len(PARTS["accuracy"].cases(Place(kind="cpu", card="cpu", torch_version="")))
    intro = (
        "# Accuracy of predictions\n\nMade by `make docs` from `benchmarks/results`; the rows are measured by `make bench` "
        "(CPU) and `make gpu` (a CUDA card), each in a process of its own. About half of the "
        f"{count} configurations are the validation half, named by a checksum of their names when they were listed: those "
        "rows are never used to improve predictions, and both halves are shown apart."
    )
    if cards:
        intro += f"\n\nMeasured on: {', '.join(folder.name for folder in found)}."
    else:
        intro += (
            "\n\n**No card has been measured yet.** Reserved bytes, the caching allocator, CUDA kernels and the clock of "
            "cards rest on torch's sources and the published numbers below; what follows was measured on a CPU, where the "
            "same code predicts bytes of tensors."
        )
    sections = [intro, *(place_section(folder) for folder in found)]
    sections += [clock_section(results), published(results), guides(results)]
    return "\n\n".join(section for section in sections if section) + "\n"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} from {', '.join(folder.name for folder in folders(RESULTS)) or 'no results'}")


if __name__ == "__main__":
    main()
