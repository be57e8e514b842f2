"""Batches in an order that depends on the seed and the epoch alone, so a run can go on anywhere, bit for bit.

The order comes from a generator of its own: neither torch's nor numpy's global random state is read or changed,
whatever the number of workers.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from snugfit.techniques.batch_share import share_of
from snugfit.techniques.loading.apply import Batch, load


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
    count = len(dataset)
    order = np.random.Generator(np.random.PCG64((seed, epoch))).permutation(count) if shuffle else np.arange(count)
    number, ranks = share
    whole = (order[first : first + batch_size] for first in range(start * batch_size, count, batch_size))
    pieces = [one[slice(*share_of(len(one), ranks, number))] for one in whole]
    return load(dataset, pieces, workers=workers, pin_memory=pin_memory, prefetch=prefetch, seed=(seed + epoch) % 2**63)
