"""`digits`: 1797 handwritten digits, 8x8 grey, which ship with scikit-learn; the embedded default.

Cut 70 / 10 / 20 by class into training, validation and test, by a seed of its own. Resized once, when opened, to the
model's size. Normalised by mean and standard deviation of the training part.
"""

from __future__ import annotations

import numpy as np
import torch

from snugfit.errors import InputError
from snugfit.workloads.data.splits import ArrayImages, Indices, Splits, fewer, resize, stratified_parts

SHARES = (0.7, 0.1)
CLASSES = tuple(str(digit) for digit in range(10))


def open_digits(*, image_size: int | None, channels: int, samples: int | None) -> Splits:
    """Opens the digits.

    Args:
        image_size: Height and width; None: 8.
        channels: Channels of the images, all alike.
        samples: Training images at most, the other parts in proportion; None: all.

    Returns:
        The three parts.

    Raises:
        InputError: scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise InputError(
            f"data 'digits' needs scikit-learn, which does not import ({error}). Run: pip install snugfit[vision]"
        ) from error
    raw = load_digits()
    grey = np.asarray(raw.images, dtype=np.float32) * (255 / 16)  # scikit-learn stores 0 to 16
    if image_size is not None and image_size != grey.shape[1]:
        grey = resize(torch.from_numpy(grey[:, None]), image_size)[:, 0].numpy()
    images = np.clip(np.rint(grey), 0, 255).astype(np.uint8)[..., None]
    labels: Indices = np.asarray(raw.target, dtype=np.int64)
    parts = stratified_parts(labels, SHARES)
    mean, std = images[parts[0]].mean() / 255, images[parts[0]].std() / 255
    share = 1.0 if samples is None else samples / len(parts[0])
    train, validation, test = (
        ArrayImages(images[kept], labels[kept], mean=[mean], std=[std], channels=channels, image_size=None)
        for kept in (fewer(part, labels, share) for part in parts)
    )
    return Splits(
        name="digits", train=train, validation=validation, test=test, num_classes=len(CLASSES), class_names=CLASSES
    )
