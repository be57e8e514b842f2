"""`random`: noise with random labels, for measuring memory and speed; there is nothing to learn in it.

Every image is drawn from a generator of its own, by seed, part and index, so nothing is stored and any order gives the
same images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from snugfit.errors import InputError
from snugfit.workloads.data.splits import BatchedImages, ImageOptions, Indices, Splits, random_sizes

TRAIN_IMAGES = 1024
"""Training images where no number is given; validation and test have a quarter each."""

MOST_IMAGES = 10**8

IMAGE_SIZE = 32
"""Height and width where the model does not say them."""

NUM_CLASSES = 10
"""Classes where the model does not say them."""


class RandomImages(BatchedImages):
    """Noise of zero mean and unit variance, drawn when it is asked for."""

    def __init__(self, count: int, *, shape: tuple[int, int, int], num_classes: int, seed: int, part: int) -> None:
        """Draws the labels; `shape` is channels, height, width.

        `part`: number of the part, so that no two parts share an image.
        """
        self._shape, self._key = shape, (seed, part)
        labels = np.random.Generator(np.random.PCG64(self._key)).integers(num_classes, size=count)
        self.labels: Indices = labels.astype(np.int64)

    def batch(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns some images as tensors.

        Images, float32 `[B, C, H, W]`, and labels, int64 `[B]`.
        """
        images = torch.empty(len(indices), *self._shape)
        for row, index in enumerate(indices):
            if not 0 <= index < len(self):
                raise IndexError(index)
            random = np.random.Generator(np.random.PCG64((*self._key, 1, int(index))))
            random.standard_normal(dtype=np.float32, out=images[row].numpy())
        return images, torch.from_numpy(self.labels[np.asarray(indices, dtype=np.int64)])


def open_random(_: str, options: ImageOptions) -> Splits:
    """Makes random data."""
    count, classes = options.samples or TRAIN_IMAGES, options.num_classes or NUM_CLASSES
    if count > MOST_IMAGES:
        raise InputError(
            f"samples is {count}; random data has at most {MOST_IMAGES} images, whose labels are in memory."
        )
    side = options.image_size or IMAGE_SIZE
    shape = (options.channels, side, side)
    parts: dict[str, Any] = {
        name: RandomImages(size, shape=shape, num_classes=classes, seed=options.seed, part=part)
        for part, (name, size) in enumerate(random_sizes(count).items())
    }
    return Splits(name="random", **parts, num_classes=classes, class_names=tuple(map(str, range(classes))))
