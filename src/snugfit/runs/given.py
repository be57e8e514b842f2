"""Parts of a run that came as Python objects: a model, data, a loss. What has a name is built from its name instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from snugfit.errors import InputError, in_words
from snugfit.runs.request import Collate, Given, name_of
from snugfit.techniques.batches import map_tensors
from snugfit.training.evaluation import task_of, undisturbed
from snugfit.workloads.data import Splits
from snugfit.workloads.data.splits import BatchedImages
from snugfit.workloads.tasks import Task, task_named


def task_of_given(given: Given, name: str | None) -> Task:
    """Returns what is learned with given datasets or a given loss; `InputError` where nobody has said it."""
    if given.loss is not None:
        known = task_of(given.loss, given.loss_weight)
        return dataclasses.replace(known, name=name or known.name)
    return task_of(None, given.loss_weight) if name is None else task_named(name)


def opened(data: Any, collate: Collate | None) -> Splits:
    """Returns given datasets as opened data; `InputError` for what cannot be read in any order."""
    if isinstance(data, Splits):
        return data
    if not isinstance(data, list | tuple) or not 2 <= len(data) <= 3:
        raise InputError(
            f"data is a {type(data).__name__}; give a name such as 'digits', or datasets: (train, validation) or (train, "
            "validation, test), where validation and test may be None."
        )
    for dataset in data:
        if dataset is not None:
            _check(dataset)
    if data[0] is None or len(data[0]) == 0:
        raise InputError("the training dataset is empty; give at least one batch of samples.")
    parts = [None if one is None or len(one) == 0 else _Batched(one, collate) for one in data]
    return Splits(
        name=str(name_of(data)), train=parts[0], validation=parts[1], test=parts[2] if len(parts) > 2 else None
    )


def _check(dataset: Any) -> None:
    if isinstance(dataset, DataLoader):
        raise InputError(
            "data holds a DataLoader; give its dataset (loader.dataset): batch_size, seed and workers say the rest."
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InputError(
            f"data holds a {type(dataset).__name__}, which has no length or no samples by index; a run that can be resumed "
            "needs both. For a stream use snugfit.prepare and your own loop."
        )


class _Batched:
    """A map-style dataset that gives whole batches."""

    def __init__(self, dataset: Any, collate: Collate | None) -> None:
        self._dataset, self._collate = dataset, collate

    def __len__(self) -> int:
        return len(self._dataset)

    def batch(self, indices: Sequence[int]) -> Any:
        """Returns some samples as a batch."""
        if isinstance(self._dataset, BatchedImages):
            return self._dataset.batch(indices)
        samples = [self._dataset[int(index)] for index in indices]
        if self._collate is not None:
            return self._collate(samples)
        made = default_collate(samples)
        return tuple(made) if isinstance(made, list) else made


def check_batch(trainer: Any, data: Any, task: Task) -> None:
    """Sends one sample through model and loss before anything is trained; `InputError` if they do not match."""
    batch = data.train.batch([0])
    words = ", ".join(batch) if isinstance(batch, Mapping) else _shapes(batch)
    try:
        with undisturbed(trainer.model), torch.no_grad():
            moved = map_tensors(batch, lambda tensor: tensor.to(trainer.device))
            task.loss_of(trainer.evaluate_batch(moved), moved)
    except InputError as error:
        if task.loss is not None:
            raise
        raise InputError(
            "nobody has said what is learned: give loss=function of (output, batch), task='image-classification' or another "
            f"task, or a model that returns its loss. {error}"
        ) from error
    except Exception as error:
        raise InputError(
            f"the model cannot take a batch of the data ({words}): {in_words(error)}. "
            "A tensor goes in as it is, of a tuple the first, a dict as "
            "keywords, or forward=function of (model, batch); loss=function of (output, batch) gets the rest."
        ) from error


def _shapes(batch: Any) -> str:
    parts = batch if isinstance(batch, tuple | list) else [batch]
    return ", ".join(str(list(one.shape)) if isinstance(one, torch.Tensor) else type(one).__name__ for one in parts)
