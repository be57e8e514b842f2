"""The samples of a data set that make its widest batches, which are what memory has to hold."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

from snugfit.errors import InputError, note

MOST_READ = 2048
"""Samples that are read of a data set whose lengths are not in a table; more are passed over evenly."""
_FIRST_READ = 64
"""Those that are read first; where they are equally wide, all others are taken to be."""
_MOST_SECONDS = 3.0
"""Seconds after which no more are read."""


def widest_samples(dataset: Any, count: int, what: str = "train_dataset") -> list[Any]:
    """Returns the samples of a data set that hold most numbers, the widest first; fewer where it has fewer.

    `dataset`: indexed by whole numbers, or gone through (then the first ones are read).
    `what`: its name, for messages.
    """
    try:
        size = len(dataset)
    except TypeError:  # a stream
        return _not_empty(list(itertools.islice(iter(dataset), count)), what)
    widths = _widths(dataset, count)
    if 0 < len(widths) < size:
        note(f"{what}: {len(widths)} of {size} samples were read for the widest of them.")
    numbers = dict.fromkeys(itertools.chain(_widest_first(widths), range(size)))
    return _not_empty([dataset[number] for number in itertools.islice(numbers, count)], what)


def widest_batches(loader: Any, batches: Iterator[Any]) -> str:
    """Makes the batches of a loader those of its widest samples, and returns what to say; empty where all are as wide.

    `batches`: a pass through the loader that has not begun. Streams, and batches whose size the samples decide, are left
    as they are.
    """
    from snugfit.private_torch import give_numbers
    from snugfit.training.fallbacks import elements

    size = getattr(loader.batch_sampler, "batch_size", None)
    if not isinstance(size, int):
        return ""
    try:
        widths = _widths(loader.dataset, size)
        numbers = _widest_first(widths)
        widest, narrowest = numbers[:size], numbers[-size:]
        if len(set(widths.values())) < 2 or elements(_batch_of(loader, widest)) <= elements(
            _batch_of(loader, narrowest)
        ):
            return ""
    except Exception:  # of the script's code, which is told where the script itself comes to it
        return ""
    give_numbers(batches, lambda own: list(itertools.islice(itertools.cycle(widest), len(own))))
    of = f"{len(widths)} samples that were read of {len(loader.dataset)}"
    return f"batches are not equally wide: each is made of the widest of {of}, so that most real steps take less."


def _batch_of(loader: Any, numbers: list[int]) -> Any:
    data = loader.dataset
    together = getattr(data, "__getitems__", None)
    return loader.collate_fn(together(numbers) if together else [data[number] for number in numbers])


def _widths(dataset: Any, count: int) -> dict[int, int]:
    """Returns numbers of samples that were looked at, and what they hold."""
    size = len(dataset)
    widths = dict(enumerate(_lengths(dataset) or ()))
    every, until = range(0, size, max(1, -(-size // max(MOST_READ, count)))), time.monotonic() + _MOST_SECONDS
    spread = -(-len(every) // _FIRST_READ)
    for number in () if widths else (each for first in range(spread) for each in every[first::spread]):
        equal = len(widths) >= _FIRST_READ and len(set(widths.values())) == 1
        if equal or (len(widths) >= count and time.monotonic() > until):
            break
        widths[number] = _numbers_in(dataset[number])
    return widths


def _widest_first(widths: dict[int, int]) -> list[int]:
    return sorted(widths, key=lambda number: -widths[number])


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
    """Numbers in the tensors, arrays, lists and texts of a sample."""
    if hasattr(sample, "numel"):
        return int(sample.numel())
    if isinstance(sample, str):  # which becomes tokens where a batch is made
        return len(sample)
    if isinstance(sample, dict):
        return sum(_numbers_in(value) for value in sample.values())
    if isinstance(sample, list | tuple):
        return sum(_numbers_in(value) for value in sample)
    size = getattr(sample, "size", 1)  # an array; an image has a pair
    if isinstance(size, tuple):
        return int(size[0] * size[1])
    return size if isinstance(size, int) else 1
