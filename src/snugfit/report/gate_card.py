"""What `snugfit check` says, for a console and as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from snugfit.report.console import table
from snugfit.report.estimate_card import later_in_words, room_in_words
from snugfit.report.words import recipe_in_words
from snugfit.units import format_bytes

if TYPE_CHECKING:
    from snugfit.simulator.baseline import Comparison, Growth
    from snugfit.simulator.prediction import Estimate

Rows = list[tuple[str, ...]]


def gate_text(estimate: Estimate, comparison: Comparison | None, budget: str | None) -> str:
    """Returns the verdict for a console; `budget`: what was given beside the cards."""
    lines = [f"{_headline(estimate, comparison)}: {_subject(estimate)}"]
    for title, rows, notes in _parts(estimate, comparison, budget):
        lines += ["", title, *table(rows), *(f"  {note}" for note in notes)]
    return "\n".join(lines)


def gate_markdown(estimate: Estimate, comparison: Comparison | None, budget: str | None) -> str:
    """Returns the verdict as a comment on a pull request."""
    lines = [f"### snugfit: {_headline(estimate, comparison)}", "", _subject(estimate)]
    for title, rows, notes in _parts(estimate, comparison, budget):
        lines += ["", f"**{title}**", "", _row(rows[0]), _row(["---"] * len(rows[0]))]
        lines += [_row(cells) for cells in rows[1:]]
        lines += ["", *(f"- {note}" for note in notes)] if notes else []
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _headline(estimate: Estimate, comparison: Comparison | None) -> str:
    short = sum(not card.fits for card in estimate.devices)
    said = [f"does not fit {short} of {len(estimate.devices)} cards" if short else "fits"]
    if comparison is not None:
        said.append("within the baseline" if comparison.within else "takes more memory than its baseline")
    return " and ".join(said)


def _subject(estimate: Estimate) -> str:
    batch = estimate.batch_shape and f", batch of {estimate.batch_shape}"
    steps = "" if estimate.steps is None else f", the first {estimate.steps} steps ({later_in_words(estimate.title)})"
    return f"{estimate.title}{batch}, {recipe_in_words(estimate.recipe)}{steps}"


def _parts(
    estimate: Estimate, comparison: Comparison | None, budget: str | None
) -> Iterator[tuple[str, Rows, Sequence[str]]]:
    """Yields tables: a title, rows of which the first are titles, and sentences under them."""
    rows: Rows = [("card", "", "room")]
    rows += [(card.name, "fits" if card.fits else "does not fit", room_in_words(card)) for card in estimate.devices]
    notes = ["Nothing is kept free for errors of the prediction: `snugfit plan` keeps a margin."]
    if estimate.ranks and estimate.nccl_bytes is None and estimate.processor is None:
        notes.append("NCCL comes on top: what it takes on such cards nobody has published.")
    yield "Cards" + (f", of each {budget}" if budget else ""), rows, notes
    if comparison is None:
        return
    rows = [("", "baseline", "now", "change")]
    for change in comparison.changes:
        name = change.name.removesuffix("_bytes").replace("_", " ")
        rows.append((name, *map(format_bytes, (change.before_bytes, change.now_bytes)), f"{change.share:+.2%}"))
    yield f"Against the baseline; up to {comparison.tolerance * 100:.3g} % more is allowed", rows, comparison.also
    if comparison.grew:
        rows = [("more", "now", "what", "module", "line")]
        rows += [_grown(row) for row in comparison.grew]
        if comparison.others_bytes:
            rows.append((format_bytes(comparison.others_bytes), "", "all else together", "", ""))
        when = (
            "at the peak" if comparison.at_peak else "at other times than the peak of tensors, and the segments with it"
        )
        yield f"What grew {when}", rows, ()


def _grown(row: Growth) -> tuple[str, ...]:
    more = ("new " if not row.before_bytes else "") + format_bytes(row.now_bytes - row.before_bytes)
    line = f"{row.line}  {row.code}" if row.line else "-"
    return more, format_bytes(row.now_bytes), row.category.replace("_", " "), row.module or "-", line
