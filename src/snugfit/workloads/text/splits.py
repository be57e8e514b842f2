"""What opened text is, how it is read, and how it is cut into training, validation and test."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from snugfit.errors import InputError
from snugfit.workloads.data.splits import fewer, stratified_parts
from snugfit.workloads.text.ragged import Indices, Ragged

PARTS = ("train", "validation", "test")
SHARES = (0.8, 0.1)
"""Shares of training and validation where the data comes in one piece."""


class TextData(Protocol):
    """A map-style dataset that gives whole batches."""

    def __len__(self) -> int:
        """Returns the number of samples."""

    def batch(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """Returns samples as a batch: `input_ids`, `labels` and what else the model needs."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TextSplits:
    """Text in three parts."""

    name: str
    """How the data was asked for."""
    train: TextData
    """What the model learns from."""
    validation: TextData
    """What is looked at during training."""
    test: TextData
    """What the final metric is measured on."""
    num_classes: int | None
    """Number of different labels; None for language modelling."""
    class_names: tuple[str, ...]
    """Names of the labels, in the order of their ids."""
    tokenizer: Any
    """The tokenizer of transformers that made the ids; None for random ones."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TextOptions:
    """How text is read."""

    task: str
    """text-classification or causal-lm."""
    seq_len: int
    """Most tokens of a sample."""
    packing: bool = False
    """Short samples are laid end to end in rows of exactly `seq_len` tokens (causal-lm)."""
    text_column: str | None = None
    """Column of the texts, or of what follows a prompt."""
    label_column: str | None = None
    """Column of the labels (text-classification)."""
    prompt_column: str | None = None
    """Column of prompts, which are read and not learned (causal-lm)."""
    samples: int | None = None
    """Training samples at most, the other parts in proportion."""
    seed: int = 0
    """Seed of random data; the cut into parts has its own."""
    download: bool = False
    """Whether `hf:` data may be fetched."""


def three_parts(spec: str, labels: Mapping[str, Indices], samples: int | None) -> dict[str, tuple[str, Indices]]:
    """Says where the samples of each part are: the part of the data they come from, and their places there.

    What is missing is cut from training by label. Where only one of validation and test is there, it is the test part.
    """
    everything = {part: np.arange(len(values)) for part, values in labels.items()}
    found = {part: (part, kept) for part, kept in everything.items()}
    if "validation" in found and "test" not in found:
        found["test"] = found.pop("validation")
    if len(found) < len(PARTS):
        missing_test = "test" not in found
        shares = SHARES if missing_test else (1 - SHARES[1],)
        pieces = stratified_parts(labels["train"], shares)
        for part, piece in zip(PARTS if missing_test else PARTS[:2], pieces, strict=True):
            found[part] = ("train", piece)
    share = 1.0 if samples is None else samples / len(found["train"][1])
    found = {part: (source, fewer(kept, labels[source], share)) for part, (source, kept) in found.items()}
    empty = [part for part in PARTS if not len(found[part][1])]
    if empty:
        count = sum(map(len, labels.values()))
        raise InputError(
            f"data {spec!r} has {count} rows in all, too few to cut into training, validation and test "
            f"({', '.join(empty)} would be empty). Give at least ten rows for each label."
        )
    return {part: found[part] for part in PARTS}


def sampled(
    ids: dict[str, Ragged], fronts: dict[str, Indices], samples: int | None
) -> tuple[dict[str, Ragged], dict[str, Indices]]:
    """Keeps that many training samples, and as large a share of the other parts; which ones has a fixed seed."""
    if samples is None or samples >= len(ids["train"]):
        return ids, fronts
    share = samples / len(ids["train"])
    kept = {part: fewer(np.arange(len(ids[part])), np.zeros(len(ids[part]), dtype=np.int64), share) for part in PARTS}
    return (
        {part: ids[part].picked(kept[part]) for part in PARTS},
        {part: fronts[part][kept[part]] for part in PARTS},
    )
