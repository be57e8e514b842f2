"""Text by name: `topics`, `prose`, `csv:`, `jsonl:`, `parquet:`, `text:`, `hf:`, `random`; one file for each idea.

All text is turned into token ids when the data is opened; batches are dicts as models of transformers take them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from snugfit.errors import InputError, did_you_mean
from snugfit.workloads.hf_tasks import CAUSAL_LM, TEXT_CLASSIFICATION
from snugfit.workloads.text import causal, documents, embedded
from snugfit.workloads.text.classification import LabelledRows, LabelledTexts, has_labels, label_order, labelled_rows
from snugfit.workloads.text.columns import prompt_columns, text_column
from snugfit.workloads.text.limits import Cut, check_ids
from snugfit.workloads.text.packing import PackedSequences, pack
from snugfit.workloads.text.ragged import Indices, Ragged
from snugfit.workloads.text.random_tokens import TRAIN_SEQUENCES, RandomTokens
from snugfit.workloads.text.splits import PARTS, TextData, TextOptions, TextSplits, sampled, three_parts
from snugfit.workloads.text.tables import KINDS, Table, read_tables, texts_of
from snugfit.workloads.text.tokenizer import encode, pad_id

__all__ = ["FORMS", "TASK_OF_DATA", "TextData", "TextOptions", "TextSplits", "open_text"]

FORMS = ("topics", "prose", "csv:FILE", "jsonl:FILE", "parquet:FILE", "text:FILE_OR_DIR", "hf:NAME", "random")
TASK_OF_DATA = {"topics": TEXT_CLASSIFICATION, "prose": CAUSAL_LM, "text": CAUSAL_LM}
"""Data that is made for one task."""

RANDOM_CLASSES = 2
"""Labels of random data where the model does not say them."""

Pairs = tuple[list[str], list[str]]
"""Prompts (empty for plain texts) and what follows them."""


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
    if options.packing and spec == "random":
        raise InputError("--packing has no meaning for data 'random': its rows are full already. Leave it out.")
    if options.task == CAUSAL_LM and options.seq_len < 2:
        raise InputError(
            f"--seq-len is {options.seq_len}; a language model predicts a token from those before it: give at least 2."
        )
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
        rows = {
            part: labelled_rows(table, text=options.text_column, label=options.label_column)
            for part, table in read_tables(spec, download=options.download).items()
            if part == "train" or has_labels(table, options.label_column)
        }
    names = label_order(spec, {part: labels for part, (_, labels) in rows.items()}, label_ids)
    ids = {name: number for number, name in enumerate(names)}
    numbers = {part: np.array([ids[label] for label in labels], dtype=np.int64) for part, (_, labels) in rows.items()}
    picked = three_parts(spec, numbers, options.samples)
    made = {}
    cut = Cut(options.seq_len)
    for part, (source, kept) in picked.items():
        texts = [rows[source][0][index] for index in kept]
        encoded = cut.texts(encode(tokenizer, texts), tokenizer, texts)
        check_ids(spec, encoded, vocabulary)
        made[part] = LabelledTexts(encoded, numbers[source][kept], pad_id=pad_id(tokenizer), limit=options.seq_len)
    cut.warn(spec)
    return TextSplits(name=spec, num_classes=len(names), class_names=names, tokenizer=tokenizer, **made)


def _causal(spec: str, options: TextOptions, tokenizer: Any, vocabulary: int | None) -> TextSplits:
    cut = Cut(options.seq_len)
    if spec == "prose" or spec.startswith("text:"):
        texts = documents.cut_documents(embedded.prose() if spec == "prose" else documents.read_documents(spec))
        encoded = {part: causal.encode_texts(tokenizer, texts[part]) for part in PARTS}
        fronts = {part: np.zeros(len(encoded[part]), dtype=np.int64) for part in PARTS}
        if not options.packing:
            encoded = {part: causal.blocks(ids, options.seq_len) for part, ids in encoded.items()}
            fronts = {part: np.zeros(len(encoded[part]), dtype=np.int64) for part in PARTS}
            encoded, fronts = sampled(encoded, fronts, options.samples)
    else:
        pairs = {part: _pairs(table, options) for part, table in read_tables(spec, download=options.download).items()}
        same = {part: np.zeros(len(back), dtype=np.int64) for part, (_, back) in pairs.items()}
        encoded, fronts = {}, {}
        picked = three_parts(spec, same, None if options.packing else options.samples)
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
        check_ids(spec, encoded[part], vocabulary)
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
