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
    """Returns how many batches an epoch has; the last may be smaller."""
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
    """Yields the batches of one epoch, or one process's share of each; `InputError` for an unreadable sample.

    `dataset`: a map-style dataset of (tensor, label); one that has `batch(indices)` is asked for whole batches.
    `start`: batches to skip; they are not loaded.
    `share`: number of this process and how many share every batch. Their shares are as even as can be, and are empty
    for some of them where a last batch has fewer samples than there are processes.
    `epoch`: number of the epoch; each has its own order.
    `shuffle`: whether the order is random; if not it is the dataset's.
    `workers`: processes that load; 0 loads here.
    """
    count = len(dataset)
    order = np.random.Generator(np.random.PCG64((seed, epoch))).permutation(count) if shuffle else np.arange(count)
    number, ranks = share
    whole = (order[first : first + batch_size] for first in range(start * batch_size, count, batch_size))
    pieces = [one[slice(*share_of(len(one), ranks, number))] for one in whole]
    return load(dataset, pieces, workers=workers, pin_memory=pin_memory, prefetch=prefetch, seed=(seed + epoch) % 2**63)
