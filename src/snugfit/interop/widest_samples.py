"""The samples of a data set that make its widest batches, which are what memory has to hold."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from snugfit.errors import InputError, note

MOST_READ = 512
"""Samples that are read of a data set whose lengths are not in a table; more are passed over evenly."""


def widest_samples(dataset: Any, count: int, what: str = "train_dataset") -> list[Any]:
    """Returns the samples of a data set that hold most numbers, the widest first; fewer where it has fewer.

    `dataset`: indexed by whole numbers, or gone through (then the first ones are read).
    `what`: its name, for messages.
    """
    try:
        size = len(dataset)
    except TypeError:  # a stream
        return _not_empty(list(itertools.islice(iter(dataset), count)), what)
    lengths = _lengths(dataset)
    if lengths is not None:
        order = sorted(range(size), key=lambda number: -lengths[number])[:count]
        return _not_empty([dataset[number] for number in order], what)
    step = max(1, -(-size // max(MOST_READ, count)))
    read = [dataset[number] for number in range(0, size, step)]
    if step > 1:
        note(f"{what}: {len(read)} of {size} samples were read for the widest of them.")
    return _not_empty(sorted(read, key=lambda sample: -_numbers_in(sample))[:count], what)


def _not_empty(samples: list[Any], what: str) -> list[Any]:
    if not samples:
        raise InputError(f"{what} has no samples, so there is no batch to look at. Give a data set with some.")
    return samples


def _lengths(dataset: Any) -> Sequence[int] | None:
    """The tokens of each sample of a table of the `datasets` library; None for other data sets."""
    columns = getattr(dataset, "column_names", None)
    if not isinstance(columns, list) or "input_ids" not in columns or not hasattr(dataset, "with_format"):
        return None
    import pyarrow.compute

    column = dataset.with_format("arrow")[:].column("input_ids")
    lengths: list[int] = pyarrow.compute.list_value_length(column).to_pylist()
    return lengths


def _numbers_in(sample: Any) -> int:
    """Numbers in the tensors, arrays and lists of a sample."""
    if hasattr(sample, "numel"):
        return int(sample.numel())
    if isinstance(sample, dict):
        return sum(_numbers_in(value) for value in sample.values())
    if isinstance(sample, list | tuple):
        return sum(_numbers_in(value) for value in sample)
    size = getattr(sample, "size", 1)  # an array; an image has a pair
    if isinstance(size, tuple):
        return int(size[0] * size[1])
    return size if isinstance(size, int) else 1
