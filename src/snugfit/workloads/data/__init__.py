"""Data by name: `digits`, `cifar10:DIR`, `imagefolder:DIR`, `random`; one file for each source."""

from __future__ import annotations

from snugfit.errors import InputError, did_you_mean
from snugfit.workloads.data.cifar10 import open_cifar10
from snugfit.workloads.data.digits import open_digits
from snugfit.workloads.data.imagefolder import open_imagefolder
from snugfit.workloads.data.random_images import open_random
from snugfit.workloads.data.splits import ArrayImages, ImageData, Splits, check_labels

__all__ = ["FORMS", "ArrayImages", "ImageData", "Splits", "open_data"]

FORMS = ("digits", "cifar10:DIR", "imagefolder:DIR", "random")
TEXT = ("topics", "prose", "csv", "jsonl", "parquet", "text")
"""Data that is text (`workloads/text`)."""


def open_data(
    spec: str,
    *,
    image_size: int | None,
    channels: int,
    num_classes: int | None,
    seed: int,
    download: bool = False,
    samples: int | None = None,
    strict: bool = False,
) -> Splits:
    """Opens a data set, as the model needs it.

    Args:
        spec: `digits`, `cifar10:DIR`, `imagefolder:DIR` or `random`.
        image_size: Height and width that the model takes; None: the images keep theirs.
        channels: Channels that the model takes.
        num_classes: Classes that the model tells apart; None: not known (labels are not compared then).
        seed: Seed of random data. The cut into parts has a fixed seed of its own, whatever this is.
        download: Whether a data set that is missing may be fetched (cifar10).
        samples: Training images at most, the other parts in proportion; None: all.
        strict: Whether an image file that cannot be read stops the run (imagefolder).

    Returns:
        Training, validation and test part.

    Raises:
        InputError: The data is unknown, missing or damaged, or does not fit the model.
    """
    if samples is not None and samples < 1:
        raise InputError(f"samples is {samples}; it must be at least 1.")
    kind, colon, where = spec.partition(":")
    if kind in TEXT:
        raise InputError(
            f"data {spec!r} is text, and the task is image-classification. Give --task text-classification or causal-lm, "
            "and a model of text."
        )
    needs_folder = kind in ("cifar10", "imagefolder")
    if needs_folder and not where:
        raise InputError(f"data {spec!r} names no folder. Write {kind}:DIR.")
    if not needs_folder and (kind not in FORMS or colon):
        raise InputError(f"data {spec!r} is unknown; {did_you_mean(kind, FORMS)}")
    if strict and kind != "imagefolder":
        raise InputError(f"--strict has no meaning for data {spec!r}: only image files are ever skipped. Leave it out.")
    if kind == "digits":
        splits = open_digits(image_size=image_size, channels=channels, samples=samples)
    elif kind == "random":
        splits = open_random(
            image_size=image_size, channels=channels, num_classes=num_classes, seed=seed, samples=samples
        )
    elif kind == "cifar10":
        splits = open_cifar10(where, image_size=image_size, channels=channels, download=download, samples=samples)
    else:
        splits = open_imagefolder(where, image_size=image_size, channels=channels, samples=samples, strict=strict)
    highest = max(int(part.labels.max()) for part in (splits.train, splits.validation, splits.test))
    check_labels(spec, highest, num_classes)
    return splits
