"""Samples fetched as batches: here or by worker processes, into page-locked memory where there is a card to copy it to.

Without workers a batch is made in one piece by the dataset, with no detour over single samples.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from snugfit.device_kinds import KINDS, is_there
from snugfit.errors import InputError, SnugfitError, warn
from snugfit.techniques.batches import map_tensors

Batch = Any
"""Tuples (images, labels) or dicts of tensors, as the dataset makes them."""


def load(
    dataset: Any, pieces: Sequence[np.ndarray], *, workers: int, pin_memory: bool, prefetch: int, seed: int
) -> Generator[Batch, None, None]:
    """Yields a batch for each array of indices; `seed` is that of the workers' random state."""
    pin = usable_pin_memory(pin_memory)
    return (
        _load_in_workers(dataset, pieces, pin, workers, prefetch, seed) if workers else _load_here(dataset, pieces, pin)
    )


def _load_here(dataset: Any, pieces: Sequence[np.ndarray], pin: bool) -> Generator[Batch, None, None]:
    for piece in pieces:  # no name for a batch: it must be let go before the next is made
        yield map_tensors(fetch(dataset, piece), torch.Tensor.pin_memory) if pin else fetch(dataset, piece)


def fetch(dataset: Any, indices: Sequence[int] | np.ndarray) -> Batch:
    """Returns some samples of a dataset as a batch; of none, a batch of the same form without any."""
    if len(indices) == 0:
        return map_tensors(fetch(dataset, [0]), lambda tensor: tensor[:0])
    if hasattr(dataset, "batch"):
        return dataset.batch(indices)
    samples = [dataset[int(index)] for index in indices]
    return torch.stack([sample[0] for sample in samples]), torch.tensor([int(sample[1]) for sample in samples])


def _load_in_workers(
    dataset: Any, pieces: Sequence[np.ndarray], pin: bool, workers: int, prefetch: int, base_seed: int
) -> Generator[Batch, None, None]:
    loader: DataLoader[Any] = DataLoader(
        _WholeBatches(dataset),
        batch_size=None,  # an item is a batch already
        sampler=pieces,  # items are looked up by arrays of indices
        num_workers=workers,
        prefetch_factor=prefetch,
        pin_memory=pin,
        # Without a generator of its own DataLoader takes the workers' seed from torch's global one.
        generator=torch.Generator().manual_seed(base_seed),
    )
    for item in loader:
        if isinstance(item, str):
            raise InputError(item)
        batch, unreadable = item
        if unreadable:
            dataset.unreadable.update(unreadable)
        yield batch


class _WholeBatches(Dataset[Any]):
    """A dataset whose item is a whole batch with the files found unreadable on the way, or an error's message.

    DataLoader would put the worker's traceback into the message of any error that is raised there. What a dataset counts
    in a worker stays in that process, so it travels with the batch.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, indices: np.ndarray) -> tuple[Batch, list[str]] | str:
        try:
            batch = fetch(self._dataset, indices)
            return batch, sorted(getattr(self._dataset, "unreadable", ()))
        except SnugfitError as error:
            return str(error)


def usable_pin_memory(wanted: bool) -> bool:
    """Returns whether batches are to be page-locked: only where a CUDA device takes them.

    `wanted` with CUDA, else False; says once in a process that the wish has no effect.
    """
    if wanted and not any(kind.page_locked and is_there(name) for name, kind in KINDS.items()):
        _warn_no_effect()
        return False
    return wanted


@functools.cache
def _warn_no_effect() -> None:
    warn("pin_memory has no effect here: there is no CUDA device to copy to. Leave it out.")
