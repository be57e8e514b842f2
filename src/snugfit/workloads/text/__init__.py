"""Text by name: `topics`, `prose`, `csv:`, `jsonl:`, `parquet:`, `text:`, `hf:`, `random`; one file for each idea.

All text is turned into token ids when the data is opened; batches are dicts as models of transformers take them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from snugfit.errors import InputError, did_you_mean
from snugfit.workloads.data.splits import Splits, fewer, random_sizes, three_parts
from snugfit.workloads.options import refuse
from snugfit.workloads.tasks import CAUSAL_LM, TEXT_CLASSIFICATION
from snugfit.workloads.text import causal, chats, documents, embedded
from snugfit.workloads.text.classification import LabelledRows, has_labels, label_order, labelled_rows
from snugfit.workloads.text.columns import prompt_columns, prompts_of, text_column, warn_of_preferences
from snugfit.workloads.text.limits import Cut, check_ids
from snugfit.workloads.text.packing import PackedTexts
from snugfit.workloads.text.padded import PaddedTexts
from snugfit.workloads.text.ragged import Ids, Indices, Ragged
from snugfit.workloads.text.random_tokens import TRAIN_SEQUENCES, RandomTokens
from snugfit.workloads.text.stored import StoredColumn, picked, shown
from snugfit.workloads.text.tables import ENDINGS, KINDS, Table, read_tables, texts_of
from snugfit.workloads.text.tokenizer import pad_id

__all__ = ["FORMS", "TASK_OF_DATA", "TextOptions", "open_text"]

FORMS = ("topics", "prose", "csv:FILE", "jsonl:FILE", "parquet:FILE", "text:FILE_OR_DIR", "hf:NAME", "random")
TASK_OF_DATA = {"topics": TEXT_CLASSIFICATION, "prose": CAUSAL_LM, "text": CAUSAL_LM}
"""Data that is made for one task."""

SHARES = (0.8, 0.1)
"""Shares of training and validation where the data comes in one piece."""

RANDOM_CLASSES = 2
"""Labels of random data where the model does not say them."""


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
) -> Splits:
    """Opens text as token ids, in three parts; `InputError` where it is missing or does not fit the task.

    `vocabulary`: rows of the model's embedding; None: not known.
    `label_ids`: label -> id of a pretrained classifier; kept where the data has the same labels.
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
        path = Path(spec)
        kinds = [name for name, endings in {**ENDINGS, "text": (".txt",)}.items() if path.suffix in endings]
        hint = f"it is a file: write {kinds[0]}:{spec}. " if kinds and path.exists() else ""
        raise InputError(f"data {spec!r} is unknown for {options.task}; {hint or did_you_mean(kind, FORMS)}".rstrip())
    if not colon and ":" in known[kind]:
        raise InputError(f"data {spec!r} names nothing. Write {known[kind]}.")
    made_for = TASK_OF_DATA.get(kind, options.task)
    if made_for != options.task:
        raise InputError(
            f"data {spec!r} is for {made_for}, and the task is {options.task}. "
            + (
                "Labelled texts come as csv:FILE, jsonl:FILE or parquet:FILE."
                if made_for == CAUSAL_LM
                else "Leave --task out."
            )
        )
    causal = options.task == CAUSAL_LM
    meant = {"packing"} if causal and kind != "random" else set()
    if kind in KINDS:
        meant |= {"text_column", "prompt_column" if causal else "label_column"}
    given = {name: getattr(options, name) for name in ("packing", "text_column", "label_column", "prompt_column")}
    refuse(given, meant, f"{options.task} on data {spec!r}")
    if causal and options.seq_len < 2:
        raise InputError(
            f"--seq-len is {options.seq_len}; a language model predicts a token from those before it: give at least 2."
        )
    if options.samples is not None and options.samples < 1:
        raise InputError(f"samples is {options.samples}; it must be at least 1.")


def _random(options: TextOptions, vocabulary: int | None, num_classes: int | None) -> Splits:
    if vocabulary is None:
        raise InputError("data 'random' needs a model that says its vocabulary (an input embedding). Give other data.")
    classes = None if options.task == CAUSAL_LM else num_classes or RANDOM_CLASSES
    count = options.samples or TRAIN_SEQUENCES
    settings: Any = {"seq_len": options.seq_len, "vocabulary": vocabulary, "num_classes": classes, "seed": options.seed}
    parts: dict[str, Any] = {
        name: RandomTokens(size, **settings, part=part) for part, (name, size) in enumerate(random_sizes(count).items())
    }
    names = tuple(map(str, range(classes or 0)))
    return Splits(name="random", **parts, num_classes=classes, class_names=names)


def _classification(
    spec: str, options: TextOptions, tokenizer: Any, vocabulary: int | None, label_ids: Mapping[str, int] | None
) -> Splits:
    rows: dict[str, LabelledRows]
    if spec == "topics":
        rows = {"train": embedded.passages()}
    else:
        rows = {
            part: labelled_rows(table, text=options.text_column, label=options.label_column)
            for part, table in read_tables(spec, download=options.download).items()
            if part == "train" or has_labels(table, options.label_column)
        }
    names = label_order(spec, {part: labels for part, (_, labels) in rows.items()}, label_ids)
    ids = {name: number for number, name in enumerate(names)}
    numbers = {part: np.array([ids[label] for label in labels], dtype=np.int64) for part, (_, labels) in rows.items()}
    made: dict[str, Any] = {}
    cut = Cut(options.seq_len)
    for part, (source, kept) in _parts(spec, numbers, options.samples).items():
        encoded = cut.texts(tokenizer, picked(rows[source][0], kept))
        check_ids(spec, encoded, vocabulary)
        labels = numbers[source][kept]
        made[part] = PaddedTexts(encoded, pad_id=pad_id(tokenizer), limit=options.seq_len, labels=labels)
    cut.warn(spec)
    return Splits(name=spec, **made, num_classes=len(names), class_names=names, tokenizer=tokenizer)


def _causal(spec: str, options: TextOptions, tokenizer: Any, vocabulary: int | None) -> Splits:
    cut = Cut(options.seq_len)
    running = spec == "prose" or spec.startswith("text:")
    encoded = _documents(spec, options, tokenizer) if running else _rows(spec, options, tokenizer, cut)
    made: dict[str, Any] = {}
    for part, ids in encoded.items():
        check_ids(spec, ids, vocabulary)
        if options.packing:
            share = 1 if part == "train" else 8
            most = None if options.samples is None else max(options.samples // share, 1)
            made[part] = PackedTexts(ids, length=options.seq_len, pad_id=pad_id(tokenizer), most=most)
        else:
            made[part] = PaddedTexts(ids, pad_id=pad_id(tokenizer), limit=options.seq_len)
        if not len(made[part]):
            room = cut.unlearned or bool((ids.values < 0).any())
            raise InputError(
                f"data {spec!r} has too little text: nothing is left to predict in its {part} part. Give more text"
                + (", or a longer --seq-len that leaves room behind the prompts." if room else ".")
            )
    cut.warn(spec)
    return Splits(name=spec, **made, tokenizer=tokenizer)


def _documents(spec: str, options: TextOptions, tokenizer: Any) -> dict[str, Ragged]:
    """Running text, whole where it will be packed, else in pieces."""
    whole: Sequence[documents.Text] = embedded.prose() if spec == "prose" else documents.read_documents(spec)
    made_of = {
        part: causal.encode_documents(tokenizer, texts) for part, texts in documents.cut_documents(whole).items()
    }
    if options.packing:
        return {part: Ragged.joined(ids) for part, ids in made_of.items()}
    pieces = {part: causal.blocks(ids, options.seq_len) for part, ids in made_of.items()}
    if options.samples is None or options.samples >= len(pieces["train"]):
        return pieces
    share = options.samples / len(pieces["train"])
    return {part: ids.picked(fewer(*_alike(len(ids)), share)) for part, ids in pieces.items()}


def _rows(spec: str, options: TextOptions, tokenizer: Any, cut: Cut) -> dict[str, Ragged]:
    """One sample for each row of a table, whole where it will be packed, else cut."""
    tables = read_tables(spec, download=options.download)
    same = {part: _alike(len(table))[1] for part, table in tables.items()}
    encoded = {}
    for part, (source, kept) in _parts(spec, same, None if options.packing else options.samples).items():
        samples = _encoded_rows(tables[source], kept, options, tokenizer)
        encoded[part] = Ragged.of(samples if options.packing else cut.learned(samples))
    return encoded


def _parts(spec: str, labels: Mapping[str, Indices], samples: int | None) -> dict[str, tuple[str, Indices]]:
    return three_parts(spec, labels, samples, shares=SHARES, what="rows for each label")


def _alike(count: int) -> tuple[Indices, Indices]:
    """Indices of samples, with one and the same label for all."""
    return np.arange(count), np.zeros(count, dtype=np.int64)


def _encoded_rows(table: Table, kept: Indices, options: TextOptions, tokenizer: Any) -> Iterator[Ids]:
    chat = chats.chat_column(table, options.prompt_column, options.text_column)
    if chat is not None:
        warn_of_preferences(table, chat)
        rows = picked(StoredColumn(len(table), lambda: chats.chats_of(table, chat)), kept)
        return chats.encode_chats(tokenizer, shown(rows, f"turning {len(kept)} conversations into tokens", len(kept)))
    columns = prompt_columns(table, options.prompt_column, options.text_column)
    if columns is not None:
        warn_of_preferences(table, columns[1])
    if columns is None:
        texts = texts_of(table, text_column(table, options.text_column))
        return causal.encode_texts(tokenizer, picked(texts, kept))
    prompts, texts = prompts_of(table, columns[0]), texts_of(table, columns[1])
    if not any(prompts):
        return causal.encode_texts(tokenizer, picked(texts, kept))
    return causal.encode_pairs(tokenizer, picked(prompts, kept), picked(texts, kept))
