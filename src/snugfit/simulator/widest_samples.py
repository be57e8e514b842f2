"""The samples of a data set that make its widest batches, which are what memory has to hold."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import time
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

from snugfit.errors import InputError, note
from snugfit.simulator.shuffled_batches import EPOCHS, lies_end_to_end, widest_drawn

MOST_READ = 2048
"""Samples that are read of a data set whose lengths are not in a table; more are passed over evenly."""
_FIRST_READ = 64
"""Those that are read at least; where they are equally wide and take their time, all others are taken to be."""
_SECONDS_OF_EQUAL = 0.3
"""Seconds after which no more are read of samples that are equally wide so far."""
_MOST_SECONDS = 3.0
"""Seconds after which no more are read."""
_MOST_DRAWN = 2**20
"""Samples that are drawn to see which a sampler draws."""
_MOST_SIDES = 64
"""Sides of a sample's tensors that are looked at one by one."""
_MOST_DEEP = 3
"""Objects inside objects that are looked into."""
_MOST_LEAVES = 2**14
"""Tensors and the like of one sample that are counted: an object may refer to its whole data set."""
_MOST_COLLATED = 16
"""Batches of a loader that reads in order that are made to see how wide they are."""
_IN_ORDER = (
    "batches are not equally wide: of those that are read in order the widest is taken, so that most real steps may take "
    "less."
)
_SHUFFLED = (
    f"batches are not equally wide: one as wide as {EPOCHS} shuffles made any is taken; most steps may take less."
)
_Leaves = tuple[tuple[int, ...], ...]


def widest_samples(dataset: Any, count: int, what: str = "train_dataset") -> list[Any]:
    """Returns the samples of a data set that hold most numbers, the widest first; fewer where it has fewer.

    `dataset`: indexed by whole numbers, or gone through (then the first ones are read).
    `what`: its name, for messages.
    """
    try:
        size = len(dataset)
    except TypeError:  # a stream
        return _not_empty(list(itertools.islice(iter(dataset), count)), what)
    widths = _widths(dataset, count, range(size))
    if 0 < len(widths) < size:
        note(f"{what}: {len(widths)} of {size} samples were read for the widest of them.")
    numbers = dict.fromkeys(itertools.chain(_widest_first(widths), range(size)))
    return _not_empty([dataset[number] for number in itertools.islice(numbers, count)], what)


def widest_batches(loader: Any) -> tuple[list[list[int]], str]:
    """Returns the samples of a loader's widest batches and what to say of them; none where all are as wide.

    They are to be given by turns, as which of them takes most is the model's affair. Streams, and batches whose size the
    samples decide, have none.
    """
    from snugfit.training.fallbacks import elements

    try:
        drawn = drawn_by(loader)
        if drawn is None:
            return [], ""
        size, sampler, in_order = drawn
        count = len(loader.dataset)
        # A sampler that repeats each sample draws more than there are.
        drawn_in_all = min(max(count, len(sampler)), _MOST_DRAWN) if isinstance(sampler, Sized) else count
        numbers = range(count) if sampler is None else sorted(set(itertools.islice(iter(sampler), drawn_in_all)))
        widths = _widths(loader.dataset, size, numbers)
        if len(set(widths.values())) < 2:
            return [], ""
        if in_order and len(widths) == count and (own := _widest_in_order(loader, widths, size)) is not None:
            return own, _IN_ORDER if own else ""
        order = _widest_first(widths)
        widest, narrowest = order[:size], order[-1:] * len(order[:size])
        others, batch = _most_unlike(widths)[:size], _batch_of(loader, widest)
        if others and _shapes(_batch_of(loader, others)) == _shapes(batch):
            others = []  # images that are brought to one size
        size_of = elements if elements(batch) else _numbers  # prompts become numbers in the trainer only
        if not others and size_of(batch) <= size_of(_batch_of(loader, narrowest)):
            return [], ""
        shuffles = sampler is None and not in_order and not others and len(widths) > 2 * size and size_of is elements
        if shuffles and lies_end_to_end(widths, widest, narrowest, lambda batch: elements(_batch_of(loader, batch))):
            return [widest_drawn(widths, size, count)], _SHUFFLED
    except Exception:  # of the script's code, which is told where the script itself comes to it
        return [], ""
    if not others and len({widths[number] for number in widest}) == 1 < size:
        others = [*widest[:-1], *order[-1:]]  # the same batch with padding: its mask is not left out
    of = f"{len(widths)} samples that were read of {len(loader.dataset)}"
    return [widest, *filter(None, [others])], (
        f"batches are not equally wide: each is made of the widest of {of}, so that most real steps may take less."
    )


def drawn_by(loader: Any) -> tuple[int, Any, bool] | None:
    """Returns how many samples make a batch, what draws them, and whether in their order; None where no size is fixed.

    What draws them is None where all are drawn.
    """
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    batches = loader.batch_sampler
    while hasattr(batches, "batch_sampler"):  # accelerate's shares
        batches = batches.batch_sampler
    if getattr(type(batches), "__iter__", None) is not BatchSampler.__iter__:  # one that decides which go together
        return None
    in_order = isinstance(batches.sampler, SequentialSampler)
    draws_all = in_order or isinstance(batches.sampler, RandomSampler)
    return loader.batch_sampler.batch_size, None if draws_all else batches.sampler, in_order


def _batch_of(loader: Any, numbers: list[int]) -> Any:
    data = loader.dataset
    together = getattr(data, "__getitems__", None)
    return loader.collate_fn(together(numbers) if together else [data[number] for number in numbers])


def _shapes(batch: Any) -> list[Any]:
    from snugfit.techniques.batches import tensors_of

    return [tensor.shape for tensor in tensors_of(batch)]


def _widths(dataset: Any, count: int, among: Sequence[int]) -> dict[int, _Leaves]:
    """Returns numbers of samples that were looked at, and the sizes of what they hold.

    `count`: as many are looked at, however long that takes, where they differ.
    `among`: numbers of samples.
    """
    lengths = _lengths(dataset)
    if lengths is not None:
        return {number: tuple((length,) for length in lengths[number]) for number in among}
    every, began = among[:: max(1, -(-len(among) // max(MOST_READ, count)))], time.monotonic()
    spread = -(-len(every) // _FIRST_READ)
    widths: dict[int, _Leaves] = {}
    kinds: set[_Leaves] = set()
    for number in (each for first in range(spread) for each in every[first::spread]):
        seconds = time.monotonic() - began
        equal = len(widths) >= _FIRST_READ and len(kinds) == 1
        if seconds > (_SECONDS_OF_EQUAL if equal else _MOST_SECONDS) and (equal or len(widths) >= count):
            break
        widths[number] = tuple(itertools.islice(_leaves(dataset[number]), _MOST_LEAVES))
        kinds.add(widths[number])
    return widths


def _widest_first(widths: dict[int, _Leaves]) -> list[int]:
    """Samples by the numbers in them; behind the first those that are longest in one direction, as padding adds these up."""
    order = sorted(widths, key=lambda number: -sum(map(math.prod, widths[number])))
    sides = {number: tuple(itertools.chain(*widths[number])) for number in order}
    longest = [
        max(order, key=lambda number: sides[number][side] if side < len(sides[number]) else -1)
        for side in range(min(_MOST_SIDES, max(map(len, sides.values()), default=0)))
    ]
    return list(dict.fromkeys([*order[:1], *longest, *order]))


def _most_unlike(widths: dict[int, _Leaves]) -> list[int]:
    """Samples by how far their images are from square, tall and wide ones in turn; none where all have one shape.

    Detectors scale each image to a shortest side and pad all to the longest sides, so that a tall and a wide one take more
    than two large squares. Source: torchvision, GeneralizedRCNNTransform.
    """
    ratios: dict[int, float] = {}
    for number, leaves in widths.items():
        images = [leaf[-2:] for leaf in leaves if len(leaf) > 2 and all(leaf[-2:])]
        if images:
            height, width = max(images, key=math.prod)
            ratios[number] = height / width
    if len(set(ratios.values())) < 2:
        return []
    order = sorted(ratios, key=ratios.__getitem__)
    return list(dict.fromkeys(itertools.chain(*zip(order, reversed(order), strict=True))))


def _widest_in_order(loader: Any, widths: dict[int, _Leaves], size: int) -> list[list[int]] | None:
    """The widest batches of samples that are read in their order; none where all are as wide, None if it cannot be told.

    Which takes most is the model's affair, where one has more nodes, say, and another more edges. Two are given by turns, so
    that each is met behind the first step, and more cannot be.
    """
    groups = [list(range(first, min(first + size, len(widths)))) for first in range(0, len(widths), size)]
    sides = [list(zip(*(itertools.chain(*widths[number]) for number in group), strict=False)) for group in groups]
    padded = [tuple(len(side) * max(side) for side in of[:_MOST_SIDES]) for of in sides]
    filled = [tuple(map(sum, of[:_MOST_SIDES])) for of in sides]
    candidates = _largest({number: padded[number] + filled[number] for number in range(len(groups))})
    if len(candidates) > _MOST_COLLATED:
        return None
    collated = functools.cache(lambda number: tuple(itertools.chain(*_shapes(_batch_of(loader, groups[number])))))
    widest = _largest({number: collated(number) for number in candidates})
    if len(widest) > 2 or not collated(widest[0]):
        return None
    if len(widest) == 1:
        most, numbers = widest[0], range(len(groups))
        least = min(numbers, key=lambda number: sum(filled[number]))
        emptiest = min(numbers, key=lambda number: (padded[number] != padded[most], sum(filled[number])))
        alike = padded[least] != padded[most] or filled[least] == filled[most]
        if alike and collated(least) == collated(most):
            return []  # equal samples, or images that are brought to one size
        if emptiest != most and collated(emptiest) == collated(most):
            widest.insert(0, emptiest)  # with padding: a mask that is all true is left out
    return [groups[number] for number in widest]


def _largest(sizes: dict[int, tuple[int, ...]]) -> list[int]:
    """Numbers of those of which no other is as large in every direction, the largest last; of equal ones the first."""
    found: list[int] = []
    for number in sorted(sizes, key=lambda number: -sum(sizes[number])):
        larger = (sizes[one] for one in found if len(sizes[one]) == len(sizes[number]))
        if not any(all(map(operator.ge, one, sizes[number])) for one in larger):
            found.append(number)
    return found[::-1]


def _not_empty(samples: list[Any], what: str) -> list[Any]:
    if not samples:
        raise InputError(f"{what} has no samples, so there is no batch to look at. Give a data set with some.")
    return samples


def _lengths(dataset: Any) -> list[tuple[int, ...]] | None:
    """The tokens of each sample of a table of the `datasets` library, column by column; None for other data sets."""
    columns = getattr(dataset, "column_names", None)
    if not isinstance(columns, list) or "input_ids" not in columns or not hasattr(dataset, "with_format"):
        return None
    import pyarrow
    import pyarrow.compute

    table = dataset.with_format("arrow")[:]
    lists = [table.column(name) for name in columns if _holds_lists(table.schema.field(name).type)]
    return list(zip(*(pyarrow.compute.list_value_length(one).fill_null(0).to_pylist() for one in lists), strict=True))


def _holds_lists(kind: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind))


def _leaves(sample: Any, deep: int = _MOST_DEEP) -> Iterator[tuple[int, ...]]:
    """Yields the sizes of the tensors, arrays, lists of numbers and texts in a sample; each number is one.

    `deep`: how many objects inside objects are looked into, which may be circular.
    """
    from snugfit.techniques.batches import held_by, may_hold

    shape, size = getattr(sample, "shape", None), getattr(sample, "size", None)
    if isinstance(shape, tuple):
        yield tuple(shape)
    elif isinstance(sample, str) or (_is_list(sample) and isinstance(sample[0], int | float)):  # texts become tokens
        yield (len(sample),)
    elif isinstance(size, tuple):  # of an image
        yield (1, *size)
    elif (parts := held_by(sample)) is not None or may_hold(type(sample)):
        is_object = not isinstance(sample, Mapping | list | tuple)
        for part in (vars(sample) if parts is None else parts).values() if deep or not is_object else ():
            yield from _leaves(part, deep - is_object)
    else:
        yield ()


def _numbers(batch: Any) -> int:
    return sum(map(math.prod, itertools.islice(_leaves(batch), _MOST_LEAVES)))


def _is_list(sample: Any) -> bool:
    return isinstance(sample, list | tuple) and bool(sample)
