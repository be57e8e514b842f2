"""Labelled texts for `text-classification`: which rows have which label, and the order of the labels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from snugfit.errors import InputError, did_you_mean
from snugfit.workloads.text.columns import label_column, text_column
from snugfit.workloads.text.stored import Column
from snugfit.workloads.text.tables import Table, texts_of

_WHOLE = re.compile(r"^(-?\d+)(\.0+)?$", re.ASCII)
"""A whole number as text, also as tools write a column in which values are missing (`2.0`)."""

LabelledRows = tuple[Column, list[str]]
"""Texts, and the name of each one's label."""


def has_labels(table: Table, label: str | None) -> bool:
    """Returns whether any row has a label: competitions publish test parts whose labels are all -1."""
    return any(value not in (None, "", -1, "-1") for value in table.columns[label_column(table, label)])


def labelled_rows(table: Table, *, text: str | None, label: str | None) -> LabelledRows:
    """Returns the texts and the names of their labels; `InputError` for a missing column, text or label."""
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
    if not isinstance(value, str) or not value.strip():
        return None
    return _WHOLE.sub(r"\1", value.strip())


def label_order(name: str, parts: Mapping[str, Sequence[str]], known: Mapping[str, int] | None) -> tuple[str, ...]:
    """Returns the labels in the order of their ids; `InputError` if one only, or not those of training.

    `known`: label -> id of a pretrained model; kept where it names the same labels.
    `parts`: part -> names of labels; those of training decide.
    The names: the model's order, else that of numbers, else that of letters.
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
    numbers = all(_WHOLE.fullmatch(label) for label in labels)
    return tuple(sorted(labels, key=int) if numbers else sorted(labels))
