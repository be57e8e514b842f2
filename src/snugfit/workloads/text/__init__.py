"""Text by name: `topics`, `prose`, `csv:`, `jsonl:`, `parquet:`, `text:`, `hf:`, `random`; one file for each idea.

All text is turned into token ids when the data is opened; batches are dicts as models of transformers take them.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from snugfit.errors import InputError, SnugfitWarning, did_you_mean
from snugfit.workloads.data.splits import fewer, stratified_parts
from snugfit.workloads.hf import CAUSAL_LM, TEXT_CLASSIFICATION
from snugfit.workloads.text import causal, documents, embedded
from snugfit.workloads.text.classification import LabelledRows, LabelledTexts, label_order, labelled_rows
from snugfit.workloads.text.columns import prompt_columns, text_column
from snugfit.workloads.text.packing import PackedSequences, pack
from snugfit.workloads.text.ragged import Indices, Ragged
from snugfit.workloads.text.random_tokens import TRAIN_SEQUENCES, RandomTokens
from snugfit.workloads.text.tables import KINDS, Table, read_tables, texts_of
from snugfit.workloads.text.tokenizer import encode, pad_id

FORMS = ("topics", "prose", "csv:FILE", "jsonl:FILE", "parquet:FILE", "text:FILE_OR_DIR", "hf:NAME", "random")
TASK_OF_DATA = {"topics": TEXT_CLASSIFICATION, "prose": CAUSAL_LM, "text": CAUSAL_LM}
"""Data that is made for one task."""

PARTS = ("train", "validation", "test")
SHARES = (0.8, 0.1)
"""Shares of training and validation where the data comes in one piece."""

RANDOM_CLASSES = 2
"""Labels of random data where the model does not say them."""

Pairs = tuple[list[str], list[str]]
"""Prompts (empty for plain texts) and what follows them."""


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


def open_text(
    spec: str,
    options: TextOptions,
    *,
    tokenizer: Any,
    vocabulary: int | None,
    num_classes: int | None = None,
    label_ids: Mapping[str, int] | None = None,
) -> TextSplits:
    """Opens text as token ids.

    Args:
        spec: One of `FORMS`.
        options: How it is read.
        tokenizer: A tokenizer of transformers; not used by random data.
        vocabulary: Rows of the model's embedding; None: not known.
        num_classes: Labels of random data.
        label_ids: Label -> id of a pretrained classifier; kept where the data has the same labels.

    Returns:
        Training, validation and test part.

    Raises:
        InputError: The data is unknown, missing, damaged, empty, or does not fit the task.
    """
    _check(spec, options)
    if spec == "random":
        return _random(options, vocabulary, num_classes)
    if options.task == TEXT_CLASSIFICATION:
        return _classification(spec, options, tokenizer, vocabulary, label_ids)
    return _causal(spec, options, tokenizer, vocabulary)


def _check(spec: str, options: TextOptions) -> None:
    kind, colon, _ = spec.partition(":")
    known = {form.partition(":")[0]: form for form in FORMS}
    if kind not in known or (colon and ":" not in known[kind]):
        raise InputError(f"data {spec!r} is unknown for {options.task}; {did_you_mean(kind, FORMS)}")
    if not colon and ":" in known[kind]:
        raise InputError(f"data {spec!r} names nothing. Write {known[kind]}.")
    made_for = TASK_OF_DATA.get(kind, options.task)
    if made_for != options.task:
        raise InputError(
            f"data {spec!r} is for {made_for}, and the task is {options.task}. "
            + ("Labelled texts come as csv:FILE, jsonl:FILE or parquet:FILE." if made_for == CAUSAL_LM else "")
        )
    given = {
        f"--{name.replace('_', '-')}": getattr(options, name)
        for name in ("text_column", "label_column", "prompt_column")
        if getattr(options, name) is not None
    }
    if given and kind not in KINDS:
        raise InputError(f"{', '.join(given)} has no meaning for data {spec!r}, which has no columns. Leave it out.")
    alien = "--prompt-column" if options.task == TEXT_CLASSIFICATION else "--label-column"
    if alien in given:
        raise InputError(f"{alien} has no meaning for {options.task}. Leave it out.")
    if options.packing and options.task == TEXT_CLASSIFICATION:
        raise InputError("--packing has no meaning for text-classification: each text has its own label. Leave it out.")
    if options.samples is not None and options.samples < 1:
        raise InputError(f"samples is {options.samples}; it must be at least 1.")


def _random(options: TextOptions, vocabulary: int | None, num_classes: int | None) -> TextSplits:
    if vocabulary is None:
        raise InputError("data 'random' needs a model that says its vocabulary (an input embedding). Give other data.")
    classes = None if options.task == CAUSAL_LM else num_classes or RANDOM_CLASSES
    count = options.samples or TRAIN_SEQUENCES
    train, validation, test = (
        RandomTokens(
            size, seq_len=options.seq_len, vocabulary=vocabulary, num_classes=classes, seed=options.seed, part=part
        )
        for part, size in enumerate((count, max(count // 4, 1), max(count // 4, 1)))
    )
    names = tuple(str(label) for label in range(classes or 0))
    return TextSplits(
        name="random",
        train=train,
        validation=validation,
        test=test,
        num_classes=classes,
        class_names=names,
        tokenizer=None,
    )


def _classification(
    spec: str, options: TextOptions, tokenizer: Any, vocabulary: int | None, label_ids: Mapping[str, int] | None
) -> TextSplits:
    rows: dict[str, LabelledRows]
    if spec == "topics":
        rows = {"train": embedded.passages()}
    else:
        tables = read_tables(spec, download=options.download)
        rows = {
            part: labelled_rows(table, text=options.text_column, label=options.label_column)
            for part, table in tables.items()
        }
    names = label_order(spec, {part: labels for part, (_, labels) in rows.items()}, label_ids)
    ids = {name: number for number, name in enumerate(names)}
    numbers = {part: np.array([ids[label] for label in labels], dtype=np.int64) for part, (_, labels) in rows.items()}
    picked = _three_parts(spec, numbers, options.samples)
    made = {}
    cut = _Cut(options.seq_len)
    for part, (source, kept) in picked.items():
        texts = [rows[source][0][index] for index in kept]
        encoded = cut.texts(encode(tokenizer, texts), tokenizer, texts)
        _check_ids(spec, encoded, vocabulary)
        made[part] = LabelledTexts(encoded, numbers[source][kept], pad_id=pad_id(tokenizer), limit=options.seq_len)
    cut.warn(spec)
    return TextSplits(name=spec, num_classes=len(names), class_names=names, tokenizer=tokenizer, **made)


def _causal(spec: str, options: TextOptions, tokenizer: Any, vocabulary: int | None) -> TextSplits:
    cut = _Cut(options.seq_len)
    if spec == "prose" or spec.startswith("text:"):
        texts = documents.cut_documents(embedded.prose() if spec == "prose" else documents.read_documents(spec))
        encoded = {part: causal.encode_texts(tokenizer, texts[part]) for part in PARTS}
        fronts = {part: np.zeros(len(encoded[part]), dtype=np.int64) for part in PARTS}
        if not options.packing:
            encoded = {part: causal.blocks(ids, options.seq_len) for part, ids in encoded.items()}
            fronts = {part: np.zeros(len(encoded[part]), dtype=np.int64) for part in PARTS}
            encoded, fronts = _sampled(encoded, fronts, options.samples)
    else:
        pairs = {part: _pairs(table, options) for part, table in read_tables(spec, download=options.download).items()}
        same = {part: np.zeros(len(back), dtype=np.int64) for part, (_, back) in pairs.items()}
        encoded, fronts = {}, {}
        picked = _three_parts(spec, same, None if options.packing else options.samples)
        for part, (source, kept) in picked.items():
            front, back = ([texts[index] for index in kept] for texts in pairs[source])
            if any(front):
                encoded[part], fronts[part] = causal.encode_pairs(tokenizer, front, back)
            else:
                encoded[part] = causal.encode_texts(tokenizer, back)
                fronts[part] = np.zeros(len(kept), dtype=np.int64)
            if not options.packing:
                encoded[part] = cut.ids(encoded[part])
    made: dict[str, TextData] = {}
    for part in PARTS:
        _check_ids(spec, encoded[part], vocabulary)
        made[part] = (
            _packed(encoded[part], fronts[part], options, part, tokenizer)
            if options.packing
            else cut.learned(encoded[part], fronts[part], pad_id(tokenizer))
        )
        if not len(made[part]):
            raise InputError(
                f"data {spec!r} has too little text: nothing is left to predict in its {part} part. Give more text"
                + (", or a longer --seq-len that leaves room behind the prompts." if fronts[part].any() else ".")
            )
    cut.warn(spec)
    return TextSplits(name=spec, num_classes=None, class_names=(), tokenizer=tokenizer, **made)


def _pairs(table: Table, options: TextOptions) -> Pairs:
    columns = prompt_columns(table, options.prompt_column, options.text_column)
    if columns is None:
        texts = texts_of(table, text_column(table, options.text_column))
        return [""] * len(texts), texts
    return texts_of(table, columns[0], empty=True), texts_of(table, columns[1])


def _packed(ids: Ragged, fronts: Indices, options: TextOptions, part: str, tokenizer: Any) -> PackedSequences:
    packed = pack(ids, fronts, length=options.seq_len, pad_id=pad_id(tokenizer))
    if options.samples is None:
        return packed
    count = options.samples if part == "train" else max(options.samples // 8, 1)
    return PackedSequences(packed.ids[:count], packed.positions[:count], packed.labelled[:count])


def _sampled(
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


def _three_parts(spec: str, labels: Mapping[str, Indices], samples: int | None) -> dict[str, tuple[str, Indices]]:
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


def _check_ids(spec: str, ids: Ragged, vocabulary: int | None) -> None:
    """A tokenizer may give ids that its size does not tell of."""
    highest = int(ids.values.max(initial=0))
    if vocabulary is not None and highest >= vocabulary:
        raise InputError(
            f"data {spec!r} has the token id {highest}, and the model's vocabulary ends at {vocabulary - 1}. Build the "
            f"model with a larger one, for example --model-arg vocab_size={highest + 1}, or give the tokenizer "
            "that belongs to it."
        )


class _Cut:
    """Cuts samples to the longest that is allowed, and counts them for one warning."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._samples = self._long = self._longest = self._unlearned = 0

    def texts(self, ids: Ragged, tokenizer: Any, texts: Sequence[str]) -> Ragged:
        """Cuts texts as the tokenizer cuts, which keeps its special tokens."""
        long = self._note(ids)
        if not len(long):
            return ids
        shorter = {
            int(index): tokenizer(
                texts[index], truncation=True, max_length=self._limit, return_attention_mask=False, verbose=False
            )["input_ids"]
            for index in long
        }
        return Ragged.of(shorter.get(index, ids[index]) for index in range(len(ids)))

    def ids(self, ids: Ragged) -> Ragged:
        """Cuts off what is too much at the end."""
        self._note(ids)
        return Ragged.of(ids[index][: self._limit] for index in range(len(ids)))

    def learned(self, ids: Ragged, fronts: Indices, fill: int) -> causal.Sequences:
        """Leaves out sequences of which nothing is learned: a batch of these would have no loss."""
        kept = np.flatnonzero(causal.counted(ids, fronts))
        self._unlearned += len(ids) - len(kept)
        return causal.Sequences(ids.picked(kept), fronts[kept], pad_id=fill, limit=self._limit)

    def _note(self, ids: Ragged) -> Indices:
        lengths = ids.lengths
        long = np.flatnonzero(lengths > self._limit)
        self._samples += len(ids)
        self._long += len(long)
        self._longest = max(self._longest, int(lengths.max(initial=0)))
        return long

    def warn(self, spec: str) -> None:
        """Says what was cut and left out, where something was."""
        if self._long:
            warnings.warn(
                f"{self._long} of {self._samples} samples of {spec} are longer than {self._limit} tokens and were cut; the "
                f"longest has {self._longest}. --seq-len sets the limit.",
                SnugfitWarning,
                stacklevel=2,
            )
        if self._unlearned:
            warnings.warn(
                f"{self._unlearned} samples of {spec} were left out: their prompt fills {self._limit} tokens, or they have "
                "one token only, so nothing of them would be learned.",
                SnugfitWarning,
                stacklevel=2,
            )
