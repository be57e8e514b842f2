"""Batches in an order that depends on the seed and the epoch alone, so a run can go on anywhere, bit for bit.

The order comes from a generator of its own: neither torch's nor numpy's global random state is read or changed,
whatever the number of workers. Without workers a batch is made in one piece by the dataset, with no detour over single
samples.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from snugfit.errors import InputError, SnugfitError
from snugfit.techniques.loading.apply import usable_pin_memory
from snugfit.techniques.microbatch.apply import map_tensors
from snugfit.techniques.shard import share_of

Batch = Any
"""Tuples (images, labels) or dicts of tensors, as the dataset makes them."""


def steps_per_epoch(dataset: Any, batch_size: int) -> int:
    """Returns how many batches an epoch has.

    Args:
        dataset: A map-style dataset.
        batch_size: Samples of one batch.

    Returns:
        Number of batches; the last may be smaller.
    """
    return -(-len(dataset) // batch_size)


def batches(
    dataset: Any,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    start: int = 0,
    shuffle: bool = True,
    workers: int = 0,
    pin_memory: bool = False,
    prefetch: int = 2,
    share: tuple[int, int] = (0, 1),
) -> Generator[Batch, None, None]:
    """Yields the batches of one epoch, or one process's share of each of them.

    Args:
        dataset: A map-style dataset of (tensor, label); one that has `batch(indices)` is asked for whole batches.
        batch_size: Samples of one batch.
        seed: Seed of the order.
        epoch: Number of the epoch; each has its own order.
        start: Batches to skip; they are not loaded.
        shuffle: Whether the order is random; if not it is the dataset's.
        workers: Processes that load; 0 loads here.
        pin_memory: Whether batches come in page-locked memory (with CUDA only).
        prefetch: Batches each worker keeps ready.
        share: Number of this process and how many share every batch. Their shares are as even as can be, and are empty for
            some of them where a last batch has fewer samples than there are processes.

    Returns:
        Generator of (images `[B, ...]`, labels int64 `[B]`), or of what the dataset's `batch` returns.

    Raises:
        InputError: While iterating, a sample cannot be read.
    """
    pin = usable_pin_memory(pin_memory)
    count = len(dataset)
    order = np.random.Generator(np.random.PCG64((seed, epoch))).permutation(count) if shuffle else np.arange(count)
    number, ranks = share
    whole = (order[first : first + batch_size] for first in range(start * batch_size, count, batch_size))
    pieces = [one[slice(*share_of(len(one), ranks, number))] for one in whole]
    if workers == 0:
        return _load_here(dataset, pieces, pin)
    return _load_in_workers(dataset, pieces, pin, workers, prefetch, (seed + epoch) % 2**63)


def _load_here(dataset: Any, pieces: Sequence[np.ndarray], pin: bool) -> Generator[Batch, None, None]:
    for piece in pieces:  # no name for a batch: it must be let go before the next is made
        yield map_tensors(fetch(dataset, piece), torch.Tensor.pin_memory) if pin else fetch(dataset, piece)


def fetch(dataset: Any, indices: Sequence[int] | np.ndarray) -> Batch:
    """Returns some samples of a dataset as a batch; of none, a batch of the same form without any.

    Args:
        dataset: As for `batches`.
        indices: Which samples.
    """
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
