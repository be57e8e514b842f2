"""Data by name: `digits`, `cifar10:DIR`, `imagefolder:DIR`, `random`; one file for each source."""

from __future__ import annotations

from typing import Any

from snugfit.errors import InputError, did_you_mean
from snugfit.workloads.data.cifar10 import open_cifar10
from snugfit.workloads.data.digits import open_digits
from snugfit.workloads.data.imagefolder import open_imagefolder
from snugfit.workloads.data.random_images import open_random
from snugfit.workloads.data.splits import ArrayImages, ImageOptions, Splits, check_labels
from snugfit.workloads.options import refuse

__all__ = ["FORMS", "ArrayImages", "Splits", "open_data"]

FORMS = ("digits", "cifar10:DIR", "imagefolder:DIR", "random")
TEXT = ("topics", "prose", "csv", "jsonl", "parquet", "text")
"""Data that is text (`workloads/text`)."""
_OPENERS = {"digits": open_digits, "cifar10": open_cifar10, "imagefolder": open_imagefolder, "random": open_random}


def open_data(spec: str, **asked: Any) -> Splits:
    """Opens a data set as the model needs it, in three parts; `InputError` where it is missing or does not fit."""
    options = ImageOptions(**asked)
    if options.samples is not None and options.samples < 1:
        raise InputError(f"samples is {options.samples}; it must be at least 1.")
    kind, colon, where = spec.partition(":")
    if kind in TEXT:
        raise InputError(
            f"data {spec!r} is text, and the task is image-classification. Give --task text-classification or causal-lm, "
            "and a model of text."
        )
    needs_folder = f"{kind}:DIR" in FORMS
    if needs_folder and not where:
        raise InputError(f"data {spec!r} names no folder. Write {kind}:DIR.")
    if not needs_folder and (kind not in FORMS or colon):
        raise InputError(f"data {spec!r} is unknown; {did_you_mean(kind, FORMS)}")
    refuse({"strict": options.strict}, {"strict"} if kind == "imagefolder" else (), f"data {spec!r}")
    splits = _OPENERS[kind](where, options)
    highest = max(int(part.labels.max()) for part in (splits.train, splits.validation, splits.test))
    check_labels(spec, highest, options.num_classes)
    return splits
