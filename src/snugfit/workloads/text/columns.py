"""Which column of a table holds the text, the label, the prompt: as named, else by the names that data sets use."""

from __future__ import annotations

from collections.abc import Sequence

from snugfit.errors import InputError, nearest, warn
from snugfit.workloads.text.stored import Column, StoredColumn
from snugfit.workloads.text.tables import Table, texts_of

TEXT = (
    *("text", "sentence", "content", "review", "document", "passage", "comment", "tweet", "body", "article"),
    *("message", "abstract", "title", "description", "question"),
)
LABEL = ("label", "labels", "target", "class", "category", "sentiment", "topic", "intent", "stars", "rating")
PROMPT = ("prompt", "instruction", "question", "query")
CONTEXT = ("input", "context")
"""What an `instruction` is about, where a row has it (as Alpaca and Dolly have)."""
COMPLETION = ("completion", "response", "output", "answer", "chosen")
"""Names of columns, the most telling first; compared without regard to case."""


def text_column(table: Table, wanted: str | None) -> str:
    """Returns the name of the column of texts: the one wanted, else by its usual names."""
    return _column(table, wanted, TEXT, what="text", option="--text-column")


def label_column(table: Table, wanted: str | None) -> str:
    """Returns the name of the column of labels, likewise."""
    return _column(table, wanted, LABEL, what="label", option="--label-column")


def prompt_columns(table: Table, prompt: str | None, text: str | None) -> tuple[str, str] | None:
    """Returns the names of the columns of prompts and answers.

    Both names; None where the table has plain texts (no prompt is named, and either a text is or the usual pair of
    names is not there).
    """
    if prompt is None:
        found = _first(table, PROMPT), _first(table, COMPLETION)
        return None if text is not None or found[0] is None or found[1] is None else (found[0], found[1])
    prompt = _column(table, prompt, PROMPT, what="prompt", option="--prompt-column")
    names = tuple(name for name in (*COMPLETION, *TEXT) if name != prompt.lower())
    return prompt, _column(table, text, names, what="completion", option="--text-column")


def prompts_of(table: Table, column: str) -> Column:
    """Returns the prompts in a column, some of them empty; what an `instruction` is about follows it in the next line."""
    prompts = texts_of(table, column, empty=True)
    context = _first(table, CONTEXT) if column.lower() == "instruction" else None
    if context is None:
        return prompts
    pairs = StoredColumn(len(table), lambda: zip(prompts, table.columns[context], strict=True))
    return StoredColumn(len(table), lambda: (f"{one}\n{more}" if more else one for one, more in pairs))


def warn_of_preferences(table: Table, learned: str) -> None:
    """Warns where preferred answers of a table of preferences are learned as plain answers."""
    ignored = _first(table, ("rejected",))
    if learned.lower() == "chosen" and ignored is not None:
        warn(
            f"data {table.name!r} is preference data: what is in {learned!r} is learned like any answer, and {ignored!r} is "
            "ignored. No preference is trained."
        )


def _column(table: Table, wanted: str | None, names: Sequence[str], *, what: str, option: str) -> str:
    listed = ", ".join(table.columns)
    if wanted is not None:
        if wanted not in table.columns:
            hint = nearest(wanted, table.columns)
            raise InputError(f"data {table.name!r} has no column {wanted!r}; {hint}its columns: {listed}.")
        return wanted
    found = _first(table, names)
    if found is None:
        raise InputError(
            f"data {table.name!r} has no column that looks like the {what} ({', '.join(names[:5])}, ...); its columns: "
            f"{listed}. Name it with {option}."
        )
    return found


def _first(table: Table, names: Sequence[str]) -> str | None:
    known = {name.lower(): name for name in table.columns}
    return next((known[name] for name in names if name in known), None)
