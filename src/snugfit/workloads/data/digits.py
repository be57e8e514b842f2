"""`digits`: 1797 handwritten digits, 8x8 grey, which ship with scikit-learn; the embedded default.

Cut 70 / 10 / 20 by class into training, validation and test, by a seed of its own. Resized once, when opened, to the
model's size. Normalised by mean and standard deviation of the training part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from snugfit.library_imports import needed
from snugfit.workloads.data import splits

SHARES = (0.7, 0.1)
CLASSES = tuple(str(digit) for digit in range(10))


def open_digits(_: str, options: splits.ImageOptions) -> splits.Splits:
    """Opens the digits."""
    raw = needed(
        "data 'digits' needs", "sklearn.datasets", library="scikit-learn", install="snugfit[vision]"
    ).load_digits()
    grey = np.asarray(raw.images, dtype=np.float32) * (255 / 16)  # scikit-learn stores 0 to 16
    if options.image_size is not None and options.image_size != grey.shape[1]:
        grey = splits.resize(torch.from_numpy(grey[:, None]), options.image_size)[:, 0].numpy()
    images = np.clip(np.rint(grey), 0, 255).astype(np.uint8)[..., None]
    labels: splits.Indices = np.asarray(raw.target, dtype=np.int64)
    parts = splits.three_parts("digits", {"train": labels}, options.samples, shares=SHARES)
    whole = images[splits.stratified_parts(labels, SHARES)[0]]
    mean, std = whole.mean() / 255, whole.std() / 255
    made: dict[str, Any] = {
        part: splits.ArrayImages(
            images[kept], labels[kept], mean=[mean], std=[std], channels=options.channels, image_size=None
        )
        for part, (_, kept) in parts.items()
    }
    return splits.Splits(name="digits", **made, num_classes=len(CLASSES), class_names=CLASSES)
