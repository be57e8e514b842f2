"""What every data source gives: three parts of labelled images, and the ways to cut and to convert them.

Images stay numpy arrays of uint8 and are converted one batch at a time, so data never counts as tensors of the
training.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from snugfit.errors import InputError
from snugfit.techniques.batches import tensors_of

PARTS = ("train", "validation", "test")

SPLIT_SEED = 2026
"""Seed of the cut into training, validation and test; never the training seed, so all runs see the same test images."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Mean and standard deviation by channel that ImageNet models are trained with (torchvision.transforms presets)."""

Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ImageOptions:
    """How images are read, and what the model that takes them is like."""

    image_size: int | None
    """Height and width that the model takes; None: the images keep theirs."""
    channels: int
    """Channels that the model takes: of colours 3, or 1 for their mean; of grey images any number, all alike."""
    num_classes: int | None
    """Classes that the model tells apart; None: not known (labels are not compared then)."""
    seed: int = 0
    """Seed of random data. The cut into parts has a fixed seed of its own, whatever this is."""
    download: bool = False
    """Whether a data set that is missing may be fetched (cifar10)."""
    samples: int | None = None
    """Training images at most, the other parts in proportion; None: all."""
    strict: bool = False
    """Whether an image file that cannot be read stops the run (imagefolder); otherwise it is left out and counted."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Splits:
    """Data in three parts that share no sample: images, text, or what the caller brought."""

    name: str
    """How the data was asked for."""

    train: Any
    """What the model learns from: it has a length, and `batch(indices)`."""

    validation: Any
    """What is looked at during training; None: nothing."""

    test: Any
    """What the final metric is measured on; None: nothing."""

    num_classes: int | None = None
    """Number of different labels, which run from 0 to one less; None: not known, or none."""

    class_names: tuple[str, ...] = ()
    """The names of the labels, in their order."""

    tokenizer: Any = None
    """The tokenizer of transformers that made the ids of a text."""

    left_out: tuple[str, ...] = ()
    """Files that could not be read when the data was opened, and belong to no part."""

    def fingerprint(self) -> str:
        """Returns sizes, names of labels and a few samples' labels (of text, its ids) as one digest: not the whole data."""
        digest = hashlib.sha256(repr(self.class_names).encode())
        for part in (self.train, self.validation, self.test):
            count = 0 if part is None else len(part)
            digest.update(f" {count}".encode())
            for tensor in tensors_of(part.batch(sorted({0, count // 2, count - 1}))) if count else ():
                if not tensor.is_floating_point():  # what is computed from pixels may differ by versions
                    digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Files that could not be read so far: by their header, or only when they were decoded."""
        parts = (self.train, self.validation, self.test)
        return tuple(sorted({*self.left_out, *(path for part in parts for path in getattr(part, "unreadable", ()))}))


class BatchedImages:
    """Images that come by the batch: a single one is a batch of one."""

    labels: Indices
    """int64, `[N]`."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        images, labels = self.batch([index])
        return images[0], int(labels[0])

    def batch(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns some images as tensors; each kind of data has its own way.

        Images, float32 `[B, C, H, W]`, and labels, int64 `[B]`.
        """
        raise NotImplementedError


@dataclasses.dataclass(eq=False, repr=False)
class ArrayImages(BatchedImages):
    """Images of one size in memory; converted, resized and normalised a batch at a time."""

    images: Bytes
    """uint8, `[N, H, W, C]` with C 1 (grey) or 3 (RGB)."""
    labels: Indices
    """int64, `[N]`."""
    _: dataclasses.KW_ONLY
    mean: Sequence[float]
    """Mean of each stored channel, of values from 0 to 1."""
    std: Sequence[float]
    """Standard deviation of each stored channel, of values from 0 to 1."""
    channels: int
    """Channels to give: those stored, or grey repeated as often as asked, or RGB's mean as one."""
    image_size: int | None
    """Height and width to give; None: as stored."""

    def batch(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns some images as tensors.

        Images, float32 `[B, C, H, W]`, and labels, int64 `[B]`.
        """
        picked = np.asarray(indices, dtype=np.int64)
        images = to_tensor(self.images[picked], self.mean, self.std, self.channels, self.image_size)
        return images, torch.from_numpy(self.labels[picked]).clone()


def to_tensor(
    images: Bytes, mean: Sequence[float], std: Sequence[float], channels: int, size: int | None
) -> torch.Tensor:
    """Returns images as a normalised float tensor.

    `images`: uint8, `[B, H, W, C]`.
    `mean`: mean of each stored channel, of values from 0 to 1.
    `size`: height and width of the result; None: as they are.
    Float32, `[B, channels, H, W]`.
    """
    middle, width = (np.asarray(numbers, dtype=np.float32).reshape(1, -1, 1, 1) * 255 for numbers in (mean, std))
    values = (np.moveaxis(images, 3, 1) - middle) / width
    if channels == 1 and values.shape[1] > 1:
        values = values.mean(axis=1, keepdims=True)
    picture = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    if size is not None and picture.shape[-2:] != (size, size):
        picture = resize(picture, size)
    # The result owns torch memory of exactly its size, whatever the steps above needed.
    return torch.empty(len(picture), channels, *picture.shape[2:]).copy_(picture)


def resize(images: torch.Tensor, size: int) -> torch.Tensor:
    """Returns float images `[B, C, H, W]` at another size, bilinear and antialiased."""
    return torch.nn.functional.interpolate(images, size=(size, size), mode="bilinear", antialias=True)


def stratified_parts(labels: Indices, shares: Sequence[float]) -> list[Indices]:
    """Cuts indices into sorted parts in which every class has its share; always the same cut.

    `labels`: int64, `[N]`.
    `shares`: share of each part but the last, which takes the rest.
    """
    random = np.random.Generator(np.random.PCG64(SPLIT_SEED))
    parts: list[list[Indices]] = [[] for _ in range(len(shares) + 1)]
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        cuts = np.round(np.cumsum(shares) * len(members)).astype(np.int64)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)).astype(np.int64) for part in parts]


def fewer(indices: Indices, labels: Indices, share: float) -> Indices:
    """Returns a sorted, stratified share (0 to 1) of some indices, at least one of them."""
    if share >= 1:
        return indices
    kept = indices[stratified_parts(labels[indices], [share])[0]]
    return kept if len(kept) else indices[:1]


def three_parts(
    name: str,
    labels: Mapping[str, Indices],
    samples: int | None,
    *,
    shares: tuple[float, float],
    what: str = "images for each class",
) -> dict[str, tuple[str, Indices]]:
    """Says where the samples of each part are: which part of the data they come from, and their indices there.

    A missing part is cut from training by label. Where only one of validation and test is there, it is the test part.

    `labels`: the labels of each part that the data comes in, `train` and maybe `validation` and `test`.
    `samples`: training samples at most, the other parts in proportion; None: all.
    """
    found = {part: (part, np.arange(len(values))) for part, values in labels.items()}
    if "validation" in found and "test" not in found:
        found["test"] = found.pop("validation")
    if len(found) < len(PARTS):
        pieces = stratified_parts(labels["train"], shares if "test" not in found else [1 - shares[1]])
        found.update({part: ("train", piece) for part, piece in zip(PARTS, pieces, strict=False)})
    share = 1.0 if samples is None else samples / max(len(found["train"][1]), 1)
    found = {part: (found[part][0], fewer(found[part][1], labels[found[part][0]], share)) for part in PARTS}
    empty = [part for part in PARTS if not len(found[part][1])]
    if empty:
        raise InputError(
            f"data {name!r} has {sum(map(len, labels.values()))} {what.split()[0]} in all, too few to cut into training, "
            f"validation and test ({', '.join(empty)} would be empty). Give at least ten {what}."
        )
    return found


def random_sizes(count: int) -> dict[str, int]:
    """Returns the sizes of the parts of random data: validation and test have a quarter of training's."""
    return {part: count if part == "train" else max(count // 4, 1) for part in PARTS}


def check_colours(name: str, channels: int) -> None:
    """Raises `InputError` for colour images and a model of neither 1 nor 3 channels."""
    if channels not in (1, 3):
        raise InputError(
            f"data {name!r} has colour images, and the model takes {channels} channels. "
            "Use a model of 3 channels (or 1: colours are then averaged)."
        )


def check_labels(name: str, highest: int, num_classes: int | None) -> None:
    """Raises `InputError` where the highest label has no output of the model."""
    if num_classes is not None and highest >= num_classes:
        raise InputError(
            f"data {name!r} has labels from 0 to {highest}, and the model tells {num_classes} classes apart. "
            f"Build the model with at least {highest + 1} classes, for example --model-arg num_classes={highest + 1}."
        )
