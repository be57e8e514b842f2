"""Labelled texts for `text-classification`: which rows have which label, and the order of the labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from snugfit.errors import InputError, did_you_mean
from snugfit.workloads.text.columns import label_column, text_column
from snugfit.workloads.text.stored import Column
from snugfit.workloads.text.tables import Table, texts_of

LabelledRows = tuple[Column, list[str]]
"""Texts, and the name of each one's label."""


def has_labels(table: Table, label: str | None) -> bool:
    """Returns whether a part has labels at all: competitions publish test parts whose labels are all -1.

    Args:
        table: The table.
        label: The column of the labels as named by the user, or None.

    Returns:
        Whether any row has one.

    Raises:
        InputError: The column is missing.
    """
    return any(value not in (None, "", -1, "-1") for value in table.columns[label_column(table, label)])


def labelled_rows(table: Table, *, text: str | None, label: str | None) -> LabelledRows:
    """Returns texts and labels of a table.

    Args:
        table: The table.
        text: The column of the texts as named by the user, or None.
        label: The column of the labels, likewise.

    Returns:
        The texts, and the name of each one's label.

    Raises:
        InputError: A column is missing, or a row has no text or no label.
    """
    texts = texts_of(table, text_column(table, text))
    column = label_column(table, label)
    values = table.columns[column]
    names = table.label_names.get(column)
    labels: list[str] = []
    shared: dict[str, str] = {}
    for row, value in enumerate(values):
        named = _label_name(value, names)
        if named is None:
            raise InputError(
                f"data {table.name!r}, {table.where(row)}: {column} is {value!r}, and a label is a word or a whole number. "
                "Give each row one, or name another column with --label-column."
            )
        labels.append(shared.setdefault(named, named))
    return texts, labels


def _label_name(value: Any, names: Sequence[str] | None) -> str | None:
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        number = int(value)
        if names is None:
            return str(number)
        return names[number] if 0 <= number < len(names) else None
    return value.strip() if isinstance(value, str) and value.strip() else None


def label_order(name: str, parts: Mapping[str, Sequence[str]], known: Mapping[str, int] | None) -> tuple[str, ...]:
    """Returns the labels in the order of their ids.

    Args:
        name: How the data was asked for.
        parts: Part -> names of labels; those of training decide.
        known: Label -> id of a pretrained model; kept where it names the same labels.

    Returns:
        The names: the model's order, else that of numbers, else that of letters.

    Raises:
        InputError: There is only one, or another part has labels of its own.
    """
    labels = set(parts["train"])
    if len(labels) < 2:
        only = next(iter(labels), "none")
        raise InputError(
            f"data {name!r} has one label only ({only!r}); telling classes apart needs at least two. Give other data, or "
            "name the right column with --label-column."
        )
    for part, names in parts.items():
        strange = sorted(set(names) - labels)
        if strange:
            raise InputError(
                f"data {name!r}: label {strange[0]!r} of {part} is not among those of train; "
                f"{did_you_mean(strange[0], sorted(labels)[:20])}"
            )
    if known is not None and set(known) == labels and sorted(known.values()) == list(range(len(known))):
        return tuple(sorted(known, key=lambda label: known[label]))
    numbers = all(label.lstrip("-").isdecimal() for label in labels)
    return tuple(sorted(labels, key=int) if numbers else sorted(labels))
