"""Text by name: `topics`, `prose`, `csv:`, `jsonl:`, `parquet:`, `text:`, `hf:`, `random`; one file for each idea.

All text is turned into token ids when the data is opened; batches are dicts as models of transformers take them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from snugfit.errors import InputError, did_you_mean
from snugfit.workloads.hf_tasks import CAUSAL_LM, TEXT_CLASSIFICATION
from snugfit.workloads.text import causal, chats, documents, embedded, stored
from snugfit.workloads.text.classification import LabelledRows, LabelledTexts, has_labels, label_order, labelled_rows
from snugfit.workloads.text.columns import prompt_columns, text_column
from snugfit.workloads.text.limits import Cut, check_ids
from snugfit.workloads.text.packing import PackedSequences, pack
from snugfit.workloads.text.ragged import Ids, Indices, Ragged
from snugfit.workloads.text.random_tokens import TRAIN_SEQUENCES, RandomTokens
from snugfit.workloads.text.splits import PARTS, TextData, TextOptions, TextSplits, sampled, three_parts
from snugfit.workloads.text.tables import KINDS, Table, read_tables, texts_of
from snugfit.workloads.text.tokenizer import pad_id

__all__ = ["FORMS", "TASK_OF_DATA", "TextData", "TextOptions", "TextSplits", "open_text"]

FORMS = ("topics", "prose", "csv:FILE", "jsonl:FILE", "parquet:FILE", "text:FILE_OR_DIR", "hf:NAME", "random")
TASK_OF_DATA = {"topics": TEXT_CLASSIFICATION, "prose": CAUSAL_LM, "text": CAUSAL_LM}
"""Data that is made for one task."""

RANDOM_CLASSES = 2
"""Labels of random data where the model does not say them."""


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
        form = {
            ".csv": "csv",
            ".tsv": "csv",
            ".jsonl": "jsonl",
            ".json": "jsonl",
            ".parquet": "parquet",
            ".txt": "text",
        }
        path = Path(spec)
        hint = f"it is a file: write {form[path.suffix]}:{spec}. " if path.suffix in form and path.exists() else ""
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
        encoded = cut.texts(tokenizer, stored.picked(rows[source][0], kept))
        check_ids(spec, encoded, vocabulary)
        made[part] = LabelledTexts(encoded, numbers[source][kept], pad_id=pad_id(tokenizer), limit=options.seq_len)
    cut.warn(spec)
    return TextSplits(name=spec, num_classes=len(names), class_names=names, tokenizer=tokenizer, **made)


def _causal(spec: str, options: TextOptions, tokenizer: Any, vocabulary: int | None) -> TextSplits:
    cut = Cut(options.seq_len)
    marks: dict[str, causal.Marks | None] = dict.fromkeys(PARTS)
    if spec == "prose" or spec.startswith("text:"):
        whole: Sequence[documents.Text] = embedded.prose() if spec == "prose" else documents.read_documents(spec)
        texts = documents.cut_documents(whole)
        made_of = {part: causal.encode_documents(tokenizer, texts[part]) for part in PARTS}
        if options.packing:
            encoded = {part: Ragged.joined(ids) for part, ids in made_of.items()}
        else:
            encoded = {part: causal.blocks(ids, options.seq_len) for part, ids in made_of.items()}
        fronts = {part: np.zeros(len(encoded[part]), dtype=np.int64) for part in PARTS}
        if not options.packing:
            encoded, fronts = sampled(encoded, fronts, options.samples)
    else:
        tables = read_tables(spec, download=options.download)
        same = {part: np.zeros(len(table), dtype=np.int64) for part, table in tables.items()}
        encoded, fronts = {}, {}
        picked = three_parts(spec, same, None if options.packing else options.samples)
        for part, (source, kept) in picked.items():
            rows = _encoded_rows(tables[source], kept, options, tokenizer)
            encoded[part], fronts[part], marks[part] = _gathered(rows, None if options.packing else cut)
    made: dict[str, TextData] = {}
    for part in PARTS:
        ids = encoded.pop(part)  # packing copies it, and does so part by part
        check_ids(spec, ids, vocabulary)
        made[part] = (
            _packed(ids, fronts[part], options, part, tokenizer, marks[part])
            if options.packing
            else cut.learned(ids, fronts[part], pad_id(tokenizer), marks[part])
        )
        del ids
        if not len(made[part]):
            room = fronts[part].any() or marks[part] is not None
            raise InputError(
                f"data {spec!r} has too little text: nothing is left to predict in its {part} part. Give more text"
                + (", or a longer --seq-len that leaves room behind the prompts." if room else ".")
            )
    cut.warn(spec)
    return TextSplits(name=spec, num_classes=None, class_names=(), tokenizer=tokenizer, **made)


Row = tuple[Ids, int, Ids | None]
"""Token ids of a sample; how many at its front are not learned; 1 for each that is learned, where that is not the rest."""


def _encoded_rows(table: Table, kept: Indices, options: TextOptions, tokenizer: Any) -> Iterator[Row]:
    chat = chats.chat_column(table, options.prompt_column, options.text_column)
    if chat is not None:
        pairs = chats.encode_chats(tokenizer, table, chat, kept)
        rows = stored.shown(pairs, f"turning {len(kept)} conversations into tokens", len(kept))
        return ((ids, 0, learned) for ids, learned in rows)
    prompts, texts = _pairs(table, options)
    texts = stored.picked(texts, kept)
    if prompts is None:
        return ((ids, 0, None) for ids in causal.encode_texts(tokenizer, texts))
    fronts = stored.picked(prompts, kept)
    return ((ids, front, None) for ids, front in causal.encode_pairs(tokenizer, fronts, texts))


def _gathered(rows: Iterator[Row], cut: Cut | None) -> tuple[Ragged, Indices, causal.Marks | None]:
    """Puts rows into arrays as they come, so that only the arrays are in memory."""
    fronts, marks = array("q"), array("b")
    limit = None if cut is None else cut.limit

    def each() -> Iterator[Ids]:
        for ids, front, learned in rows:
            fronts.append(front)
            if learned is not None:
                marks.frombytes(learned[:limit].astype(np.int8).tobytes())
            yield ids

    ids = Ragged.of(each() if cut is None else cut.each(each()))
    return (
        ids,
        np.frombuffer(fronts, dtype=np.int64) if len(fronts) else np.zeros(0, dtype=np.int64),
        np.frombuffer(marks, dtype=np.int8) != 0 if len(marks) else None,
    )


def _pairs(table: Table, options: TextOptions) -> tuple[Sequence[str] | None, Sequence[str]]:
    """Returns the prompts, None where there are none, and the texts."""
    columns = prompt_columns(table, options.prompt_column, options.text_column)
    if columns is None:
        return None, texts_of(table, text_column(table, options.text_column))
    prompts, texts = texts_of(table, columns[0], empty=True), texts_of(table, columns[1])
    return (prompts if any(prompts) else None), texts


def _packed(
    ids: Ragged, fronts: Indices, options: TextOptions, part: str, tokenizer: Any, marks: causal.Marks | None
) -> PackedSequences:
    packed = pack(ids, fronts, length=options.seq_len, pad_id=pad_id(tokenizer), marks=marks)
    if options.samples is None:
        return packed
    count = options.samples if part == "train" else max(options.samples // 8, 1)
    return PackedSequences(packed.ids[:count], packed.positions[:count], packed.labelled[:count])
