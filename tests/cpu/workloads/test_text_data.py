"""Text as token ids: embedded data, labels, parts, prompts, padding, limits."""

import codecs
import csv
import gc
import json
import tracemalloc

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from snugfit.errors import InputError, SnugfitWarning
from snugfit.workloads.text import TextOptions, documents, open_text
from snugfit.workloads.text.causal import encode_documents
from snugfit.workloads.text.classification import label_order
from snugfit.workloads.text.documents import cut_documents, read_documents
from snugfit.workloads.text.embedded import FAMILIES, passages, prose
from snugfit.workloads.text.tokenizer import byte_tokenizer

TOKENIZER = byte_tokenizer()
PARTS = ("train", "validation", "test")


def opened(spec, task, *, seq_len=64, vocabulary=259, label_ids=None, **options):
    options = TextOptions(task=task, seq_len=seq_len, **options)
    return open_text(str(spec), options, tokenizer=TOKENIZER, vocabulary=vocabulary, label_ids=label_ids)


def refused(spec, task, **options):
    with pytest.raises(InputError) as caught:
        opened(spec, task, **options)
    return str(caught.value)


def text_of(ids):
    return bytes(int(one) - 3 for one in ids if one > 2).decode()


def csv_file(folder, rows, header=("text", "label"), name="a.csv"):
    with (folder / name).open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return folder / name


def jsonl_file(folder, rows, name="a.jsonl"):
    (folder / name).write_text("\n".join(json.dumps(row) for row in rows))
    return folder / name


def test_topics_are_balanced_enough_and_no_passage_is_in_two_parts():
    data = opened("topics", "text-classification", seq_len=512)
    assert data.class_names == tuple(sorted(FAMILIES)) and data.num_classes == 6
    assert len(data.train) > 500 and len(data.test) > 60
    texts = {part: {text_of(getattr(data, part).ids[i]) for i in range(len(getattr(data, part)))} for part in PARTS}
    assert not texts["train"] & texts["test"] and not texts["train"] & texts["validation"]
    counts = np.bincount(data.test.labels, minlength=6)
    assert counts.min() >= 5 and counts.max() / counts.sum() < 0.35
    assert len(set(passages()[0])) == len(passages()[0])


def test_prose_is_english_in_three_parts():
    data = opened("prose", "causal-lm", seq_len=128)
    assert len(data.train) > 1000 and min(len(data.validation), len(data.test)) > 100
    assert set(data.train.ids.lengths.tolist()) <= set(range(2, 129)) and data.train.ids.lengths.max() == 128
    pages = prose()
    joined = text_of(data.test.ids.values)
    held_out = [page for page in pages if page in joined]
    assert held_out and sum(map(len, held_out)) == len(joined)
    train = text_of(data.train.ids.values)
    assert not any(page in train for page in held_out)


def test_documents_are_cut_by_place_where_they_are_few():
    assert cut_documents(["0123456789" * 10]) == {
        "train": ["0123456789" * 8], "validation": ["0123456789"], "test": ["0123456789"]
    }  # fmt: skip
    many = [str(number) * 10 for number in range(10, 40)]
    cut = cut_documents(many)
    assert sorted(one for part in cut.values() for one in part) == sorted(many) and [
        len(cut[part]) for part in PARTS
    ] == [24, 3, 3]


def test_text_files_and_folders(tmp_path):
    (tmp_path / "a.txt").write_text("some words " * 40)
    (tmp_path / "b.md").write_text("other words " * 40)
    (tmp_path / "c.bin").write_text("not read")
    data = opened(f"text:{tmp_path}", "causal-lm", seq_len=32)
    assert text_of(data.train.ids.values) == ("some words " * 40)[:352] + ("other words " * 40)[:384]
    (tmp_path / "d.txt").write_text(" \n")
    assert "d.txt' is empty" in refused(f"text:{tmp_path}", "causal-lm")
    assert "does not exist" in refused("text:nowhere", "causal-lm")
    (tmp_path / "none").mkdir()
    assert "has no .txt or .md files" in refused(f"text:{tmp_path / 'none'}", "causal-lm")
    (tmp_path / "short.txt").write_text("a")
    assert "too little text" in refused(f"text:{tmp_path / 'short.txt'}", "causal-lm")


def test_labels_become_ids_and_texts_are_padded_to_the_longest(tmp_path):
    rows = [("a" * (1 + row % 20), "yes" if row % 3 else "no") for row in range(60)]
    data = opened(f"csv:{csv_file(tmp_path, rows)}", "text-classification")
    assert data.class_names == ("no", "yes") and [len(getattr(data, part)) for part in PARTS] == [48, 6, 6]
    batch = data.train.batch([0, 1, 2])
    longest = int(data.train.ids.lengths[:3].max())
    assert batch["input_ids"].shape == (3, -(-longest // 8) * 8) == batch["attention_mask"].shape
    for row in range(3):
        ids, mask = batch["input_ids"][row], batch["attention_mask"][row]
        assert mask.sum() == len(data.train.ids[row]) and torch.equal(
            ids[mask == 1].int(), torch.tensor(data.train.ids[row])
        )
        assert (ids[mask == 0] == 0).all()
    found = {part: np.bincount(getattr(data, part).labels).tolist() for part in PARTS}
    assert found == {"train": [16, 32], "validation": [2, 4], "test": [2, 4]}


def test_whole_numbers_written_as_floats_are_whole_numbers(tmp_path):
    data = opened(
        f"csv:{csv_file(tmp_path, [(f'text {n}', f'{n % 11}.0') for n in range(110)])}", "text-classification"
    )
    assert data.class_names == tuple(map(str, range(11)))


def test_labels_keep_the_order_of_numbers_or_of_the_model(tmp_path):
    assert label_order("x", {"train": ["10", "9", "2"]}, None) == ("2", "9", "10")
    assert label_order("x", {"train": ["--1", "-1"]}, None) == ("--1", "-1")
    assert label_order("x", {"train": ["neg", "pos"]}, {"pos": 0, "neg": 1}) == ("pos", "neg")
    assert label_order("x", {"train": ["neg", "pos"]}, {"LABEL_0": 0, "LABEL_1": 1}) == ("neg", "pos")
    with pytest.raises(InputError, match="label 'c' of test is not among those of train"):
        label_order("x", {"train": ["a", "b"], "test": ["c"]}, None)
    rows = [{"text": "a", "label": row % 2} for row in range(40)] + [{"text": "b", "label": None}]
    assert "line 41: label is None" in refused(f"jsonl:{jsonl_file(tmp_path, rows)}", "text-classification")


def test_a_folder_keeps_its_parts_and_a_test_part_without_labels_is_not_one(tmp_path):
    rows = [{"text": f"t{row}", "label": row % 2} for row in range(40)]
    jsonl_file(tmp_path, rows, "train.jsonl")
    jsonl_file(tmp_path, rows[:6], "dev.jsonl")
    jsonl_file(tmp_path, [{"text": "t", "label": -1}], "test.jsonl")
    data = opened(f"jsonl:{tmp_path}", "text-classification")
    assert [len(getattr(data, part)) for part in PARTS] == [36, 4, 6]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([("a", "x")] * 30, "has one label only ('x')"),
        ([("a", "x"), ("", "y")] * 20, "20 of 40 rows have no text"),
        ([("a", "x"), ("b", "y")], "too few to cut"),
    ],
)
def test_data_that_teaches_nothing_is_refused(tmp_path, rows, says):
    assert says in refused(f"csv:{csv_file(tmp_path, rows)}", "text-classification")


def test_long_texts_are_cut_and_counted(tmp_path):
    rows = [("a" * (100 if row < 4 else 10), "xy"[row % 2]) for row in range(40)]
    file = csv_file(tmp_path, rows)
    with pytest.warns(
        SnugfitWarning, match=r"4 of 40 samples .* longer than 32 tokens and were cut; the longest has 101"
    ):
        data = opened(f"csv:{file}", "text-classification", seq_len=32)
    lengths = np.concatenate([getattr(data, part).ids.lengths for part in PARTS])
    assert sorted(lengths)[-5:] == [11, 32, 32, 32, 32]
    longest = next(
        ids for part in PARTS for i in range(len(getattr(data, part))) if len(ids := getattr(data, part).ids[i]) == 32
    )
    assert longest[-1] == 1  # the tokenizer's end stays
    with pytest.warns(SnugfitWarning, match="4 of 40 samples"):
        data = opened(f"csv:{file}", "causal-lm", seq_len=32)
    assert max(getattr(data, part).ids.lengths.max() for part in PARTS) == 32


def test_prompts_are_read_and_not_learned(tmp_path):
    rows = [{"prompt": "ab" * (1 + row % 3), "completion": "cde"} for row in range(30)]
    data = opened(f"jsonl:{jsonl_file(tmp_path, rows)}", "causal-lm")
    batch = data.train.batch([0, 1])
    for row in range(2):
        ids, labels = batch["input_ids"][row], batch["labels"][row]
        learned = labels != -100
        assert text_of(ids[learned]) == "cde" and ids[learned][-1] == 1 and torch.equal(labels[learned], ids[learned])
        assert text_of(ids[~learned]).strip("\n") in ("ab", "abab", "ababab") and text_of(ids[~learned])[-1] == "\n"
    plain = opened(f"jsonl:{tmp_path / 'a.jsonl'}", "causal-lm", text_column="completion")
    batch = plain.train.batch([0])
    assert torch.equal(batch["labels"][batch["attention_mask"] == 1], batch["input_ids"][batch["attention_mask"] == 1])
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()


def test_prompts_that_leave_no_room_are_left_out(tmp_path):
    rows = [{"prompt": "a" * (50 if row < 3 else 5), "completion": "bc"} for row in range(40)]
    with pytest.warns(SnugfitWarning) as caught:
        data = opened(f"jsonl:{jsonl_file(tmp_path, rows)}", "causal-lm", seq_len=20)
    assert any("3 samples" in str(one.message) and "prompt fills 20 tokens" in str(one.message) for one in caught)
    assert sum(len(getattr(data, part)) for part in PARTS) == 37


def test_ids_beyond_the_vocabulary_are_refused(tmp_path):
    file = csv_file(tmp_path, [("az"[row % 2], "xy"[row % 2]) for row in range(40)])
    assert opened(f"csv:{file}", "text-classification", vocabulary=126)
    assert "vocab_size=126" in refused(f"csv:{file}", "text-classification", vocabulary=125)


@pytest.mark.parametrize(
    ("spec", "task", "options", "says"),
    [
        ("topcis", "text-classification", {}, "did you mean 'topics'"),
        ("topics:x", "text-classification", {}, "unknown"),
        ("csv", "text-classification", {}, "Write csv:FILE"),
        ("topics", "causal-lm", {}, "is for text-classification"),
        ("prose", "text-classification", {}, "is for causal-lm"),
        ("prose", "causal-lm", {"text_column": "x"}, "--text-column has no meaning"),
        ("csv:x", "causal-lm", {"label_column": "x"}, "--label-column has no meaning"),
        ("csv:x", "text-classification", {"prompt_column": "x"}, "--prompt-column has no meaning"),
        ("topics", "text-classification", {"packing": True}, "--packing has no meaning"),
        ("random", "causal-lm", {"packing": True}, "--packing has no meaning"),
        ("prose", "causal-lm", {"seq_len": 1}, "give at least 2"),
        ("random", "causal-lm", {"vocabulary": None}, "says its vocabulary"),
    ],
)
def test_what_does_not_go_together(spec, task, options, says):
    assert says in refused(spec, task, **options)


@pytest.mark.parametrize("task", ["text-classification", "causal-lm"])
def test_random_tokens_are_decided_by_seed_and_index(task):
    one, same, other = (opened("random", task, seed=seed, samples=20, vocabulary=50) for seed in (1, 1, 2))
    first, again = one.train.batch([3, 7]), same.train.batch([7, 3])
    assert first.keys() == {"input_ids", "labels"} and first["input_ids"].shape == (2, 64)
    assert torch.equal(first["input_ids"].flip(0), again["input_ids"])
    assert not torch.equal(first["input_ids"], other.train.batch([3, 7])["input_ids"])
    assert not torch.equal(first["input_ids"], one.test.batch([3, 4])["input_ids"])
    assert int(first["input_ids"].max()) < 50
    assert first["labels"].shape == ((2, 64) if task == "causal-lm" else (2,))


def test_fewer_samples_are_a_share_of_every_part():
    data = opened("topics", "text-classification", samples=100, seq_len=512)
    assert len(data.train) == pytest.approx(100, abs=3) and len(data.test) == pytest.approx(12, abs=4)
    data = opened("prose", "causal-lm", samples=50)
    assert len(data.train) == pytest.approx(50, abs=1) and 1 <= len(data.test) < 20


def test_a_text_that_stays_in_its_file_is_the_text(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "_PART", 7)  # so that parts end inside of characters and line ends
    text = "één\r\nzwei, drei … vier\r\rfünf\n" * 5
    (tmp_path / "a.txt").write_bytes(codecs.BOM_UTF8 + text.encode("utf-8"))
    expected = text.replace("\r\n", "\n").replace("\r", "\n")
    (stored,) = read_documents(f"text:{tmp_path / 'a.txt'}")
    assert len(stored) == len(expected) and "".join(stored) == expected
    for start, stop in ((0, 5), (3, 4), (10, 200), (4, 4), (len(expected) - 3, len(expected))):
        assert "".join(stored[start:stop]) == expected[start:stop]
        assert "".join(stored[2:][start:stop]) == expected[2:][start:stop]


@pytest.mark.parametrize(("content", "place"), [(b"ab\xe9cd" * 9, 2), (codecs.BOM_UTF8 + b"a" * 20 + b"\xff", 23)])
def test_what_is_no_utf8_is_told_with_its_place(tmp_path, monkeypatch, content, place):
    monkeypatch.setattr(documents, "_PART", 7)
    (tmp_path / "a.txt").write_bytes(content)
    assert f"at byte {place}. Convert it" in refused(f"text:{tmp_path / 'a.txt'}", "causal-lm")


@pytest.mark.parametrize(
    "text", ["plain words, " * 50, "words </s> and a mark " * 20, "ends in half a mark </", "</s>"]
)
def test_a_text_in_parts_has_the_tokens_of_the_whole(tmp_path, monkeypatch, text):
    monkeypatch.setattr(documents, "_PART", 5)
    (tmp_path / "a.txt").write_text(text)
    tokenizer = byte_tokenizer()
    (stored,) = read_documents(f"text:{tmp_path / 'a.txt'}")
    (parts,) = encode_documents(tokenizer, [stored])
    assert np.concatenate(list(parts)).tolist() == tokenizer(text)["input_ids"]


@pytest.mark.parametrize("kind", ["text", "csv", "jsonl"])
@pytest.mark.parametrize("packing", [False, True])
def test_reading_takes_little_more_memory_than_the_tokens(tmp_path, kind, packing):
    lines = [f"the quick brown fox number {n} jumps over the lazy dog {'again ' * 70}" for n in range(8000)]
    file = tmp_path / f"a.{'txt' if kind == 'text' else kind}"
    if kind == "jsonl":
        file.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    else:
        file.write_text(("" if kind == "text" else "text\n") + "\n".join(lines))
    few = tmp_path / "few" / file.name  # what is imported and cached on the way
    few.parent.mkdir()
    few.write_text("".join(file.read_text().splitlines(keepends=True)[:400]))
    opened(f"{kind}:{few}", "causal-lm", seq_len=512, packing=packing)
    gc.collect()
    tracemalloc.start()
    try:
        data = opened(f"{kind}:{file}", "causal-lm", seq_len=512, packing=packing)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(data.train) > 0
    assert kept > 3 * file.stat().st_size, "an id has four bytes"
    # Packing copies the ids into rows; reading and encoding go by parts of some MiB.
    assert peak < kept + (0.5 * kept if packing else 0) + 12 * 2**20
