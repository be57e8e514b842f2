"""Conversations: both spellings, with and without a template; exactly what the assistant says is learned."""

from __future__ import annotations

import json

import numpy as np
import pytest

from snugfit.errors import InputError
from snugfit.workloads.text import TextOptions, chats, open_text
from snugfit.workloads.text.chat_spans import Chat, written
from snugfit.workloads.text.tables import Table
from snugfit.workloads.text.tokenizer import byte_tokenizer

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hé?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "No."},
]
SHAREGPT = [
    {"from": {"user": "human", "assistant": "gpt"}.get(turn["role"], turn["role"]), "value": turn["content"]}
    for turn in TURNS
]
CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
FORGETS = (
    "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' and loop.last %}(thought) {% endif %}"
    "{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokenizer_with(template):
    made = byte_tokenizer()
    made.chat_template = template
    return made


def learned_text(tokenizer, turns):
    text, spans = written(tokenizer, Chat(turns))
    return [text[start:end] for start, end in spans]


def test_without_a_template_a_turn_is_a_line():
    plain = tokenizer_with(None)
    assert learned_text(plain, TURNS) == ["Yes.</s>", "No.</s>"]
    assert (
        written(plain, Chat(TURNS))[0]
        == "system: Be brief.\nuser: Hé?\nassistant: Yes.</s>\nuser: Sure?\nassistant: No.</s>\n"
    )


def test_with_a_template_the_whole_is_the_templates():
    tokenizer = tokenizer_with(CHATML)
    assert learned_text(tokenizer, TURNS) == ["Yes.<end>\n", "No.<end>\n"]
    assert written(tokenizer, Chat(TURNS))[0] == tokenizer.apply_chat_template(TURNS, tokenize=False)


def test_a_template_that_rewrites_earlier_turns_has_them_learned_as_they_stand():
    assert learned_text(tokenizer_with(FORGETS), TURNS) == ["Yes.\n", "(thought) No.\n"]


def test_a_template_that_refuses_is_named():
    refuses = tokenizer_with("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InputError, match=r"refuses a conversation of system, user.*roles must alternate"):
        written(refuses, Chat(TURNS))


def options(**given):
    return TextOptions(**{"task": "causal-lm", "seq_len": 128, **given})


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(("name", "turns"), [("messages", TURNS), ("conversations", SHAREGPT), ("said", TURNS)])
def test_files_of_conversations_become_batches(tmp_path, kind, name, turns):
    file = tmp_path / f"chats.{kind}"
    if kind == "jsonl":
        file.write_text("".join(json.dumps({"id": row, name: turns}) + "\n" for row in range(20)))
    else:
        pyarrow = pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"id": list(range(20)), name: [turns] * 20}), file)
    tokenizer = tokenizer_with(None)
    given = {"text_column": name} if name == "said" else {}
    data = open_text(f"{kind}:{file}", options(**given), tokenizer=tokenizer, vocabulary=384)
    batch = data.train.batch([0, 1])
    for row in range(2):
        labels = batch["labels"][row].tolist()
        learned = [label for label in labels if label != -100]
        assert tokenizer.decode(learned, skip_special_tokens=False).replace(" ", "") == "Yes.</s>No.</s>"
        assert all(label in (-100, one) for label, one in zip(labels, batch["input_ids"][row].tolist(), strict=True))


def test_conversations_are_cut_and_packed_with_their_marks(tmp_path):
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps({"messages": TURNS}) + "\n" for _ in range(20)))
    tokenizer = tokenizer_with(None)
    packed = open_text(f"jsonl:{file}", options(packing=True, seq_len=67), tokenizer=tokenizer, vocabulary=384).train
    labels = np.concatenate([packed.batch([row])["labels"][0].numpy() for row in range(len(packed))])
    counts = np.bincount(labels[labels >= 0], minlength=300)
    assert counts[ord("Y") + 3] == 16 and counts[ord("B") + 3] == 0 and counts[ord("S") + 3] == 0
    with pytest.warns(UserWarning, match="were cut"):
        short = open_text(f"jsonl:{file}", options(seq_len=46), tokenizer=tokenizer, vocabulary=384)
    first = short.train.batch([0])
    assert first["input_ids"].shape[1] <= 48 and (first["labels"] != -100).sum() == 5  # Yes. and its end
    with pytest.raises(InputError, match="nothing is left to predict"):
        open_text(f"jsonl:{file}", options(seq_len=20), tokenizer=tokenizer, vocabulary=384)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "give a list of turns"),
        ([{"content": "a"}], r"messages\[0\] is .*a turn is"),
        ([{"role": "user", "content": [{"type": "image"}]}], "has the part .*'image'.*only parts of text are learned"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}], "has the part 'b'"),
        ([{"role": "user", "content": {"text": "a"}}], r"\(dict\); give text, or a list"),
        ([{"role": "user", "content": []}], "neither content nor tool_calls"),
        (["a"], r"messages\[0\] is 'a'"),
        (None, "give a list of turns"),
        ([{"role": "assistant", "content": None}], "neither content nor tool_calls"),
        ([{"role": "assistant", "content": None, "tool_calls": ["f"]}], r"tool_calls of 'assistant' are \"\['f'\]\""),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], 'give a list of {"type": "function"'),
    ],
)
def test_rows_that_are_no_conversation_are_named(value, says):
    table = Table(name="a.jsonl", columns={"messages": [TURNS, value]}, lines=[1, 3])
    with pytest.raises(InputError, match=f"line 3.*{says}"):
        list(chats.chats_of(table, "messages"))


PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'text' %}{{ c.text }}{% if not loop.last %}|{% endif %}{% endif %}{% endfor %}{% endif %}<end>\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
FAILS = "{% for m in messages %}{{ m.role + ': ' + m.content }}\n{% endfor %}"
SILENT = "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% endif %}\n{% endfor %}"
MARKED_PARTS = PARTS.replace("{% if m.content is string %}", "{% generation %}{% if m.content is string %}").replace(
    "<end>\n", "<end>\n{% endgeneration %}"
)


def in_parts(turn):
    """The turn's text in two parts, with a key that another row has, as tables give it."""
    half = len(turn["content"]) // 2
    texts = [turn["content"][:half], turn["content"][half:]]
    return {**turn, "content": [{"type": "text", "text": one, "image": None} for one in texts]}


@pytest.mark.parametrize("template", [PARTS, CHATML, FORGETS, FAILS, SILENT, None, MARKED_PARTS])
def test_content_may_be_a_list_of_text_parts(template):
    turns = [in_parts(turn) if at != 1 else turn for at, turn in enumerate(TURNS)]
    chat = next(chats.chats_of(Table(name="a", columns={"messages": [turns]}), "messages"))
    tokenizer = tokenizer_with(template)
    text, spans = written(tokenizer, chat)
    if template in (PARTS, MARKED_PARTS):
        assert text == tokenizer.apply_chat_template(turns, tokenize=False) and "Ye|s." in text
        if template is PARTS:
            assert [text[start:end] for start, end in spans] == ["Ye|s.<end>\n", "N|o.<end>\n"]
    else:  # knows no parts
        assert (text, spans) == written(tokenizer, Chat(TURNS))


def test_parts_of_an_earlier_turn_that_a_template_rewrites():
    thought = "%}<{{ m.role }}>{% if loop.last and m.role == 'assistant' %}(so) {% endif %}"
    rewrites = PARTS.replace("%}<{{ m.role }}>", thought)
    chat = next(chats.chats_of(Table(name="a", columns={"messages": [[in_parts(turn) for turn in TURNS]]}), "messages"))
    assert learned_text(tokenizer_with(rewrites), chat.turns) == ["Ye|s.<end>\n", "(so) N|o.<end>\n"]


CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}{{ m.tool_calls }}{% endfor %}"


def table_with(tools):
    turns = [{"role": "user", "content": "Hé?"}, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    return Table(name="a.jsonl", columns={"messages": [turns], "tools": [tools]}, lines=[1])


def test_tools_come_as_a_list_or_as_json():
    tool = {"type": "function", "function": {"name": "f"}}
    texts = [
        written(tokenizer_with(TOOLS), next(chats.chats_of(table_with(one), "messages")))
        for one in ([tool], json.dumps([tool]))
    ]
    assert texts[0] == texts[1] and json.dumps([tool]) in texts[0][0]
    for nothing in (None, [], "", "[]"):
        assert next(chats.chats_of(table_with(nothing), "messages")).tools is None
    for wrong in ("{", ["f"], '{"f": 1}'):
        with pytest.raises(InputError, match=r"line 1: tools is .*give a list of JSON schemas"):
            next(chats.chats_of(table_with(wrong), "messages"))


def test_calls_need_a_template_that_writes_them():
    with pytest.raises(InputError, match="calls tools, and the tokenizer has no chat template"):
        written(tokenizer_with(None), next(chats.chats_of(table_with(None), "messages")))
    silent = tokenizer_with("{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}")
    turns = [*TURNS[:2], {"role": "assistant", "tool_calls": [CALL]}, *TURNS[3:]]
    with pytest.raises(InputError, match="writes nothing of the tool_calls of turn 3"):
        written(silent, Chat(turns))


def preferences(chosen, prompt):
    rows = 20
    return [{"prompt": prompt, "chosen": chosen, "rejected": "Bad."} for _ in range(rows)]


@pytest.mark.parametrize(
    ("rows", "learned"),
    [
        (preferences("Good.", "Hé?"), "Good.</s>"),
        (preferences(TURNS[1:3], "Hé?"), "Yes.</s>"),
        (preferences(TURNS[2:3], TURNS[:2]), "Yes.</s>"),
    ],
)
def test_preferences_are_said_to_be_ignored(tmp_path, rows, learned):
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = tokenizer_with(None)
    with pytest.warns(UserWarning, match="'chosen' is learned like any answer, and 'rejected' is ignored"):
        data = open_text(f"jsonl:{file}", options(), tokenizer=tokenizer, vocabulary=384)
    batch = data.train.batch([0])
    labels = batch["labels"][0]
    assert tokenizer.decode(labels[labels >= 0].tolist()) == learned
    assert "?" in tokenizer.decode(batch["input_ids"][0].tolist())


def test_texts_and_prompts_that_are_named_win():
    table = Table(name="a", columns={"messages": [TURNS], "text": ["a"]})
    assert chats.chat_column(table, None, None) == "messages"
    assert chats.chat_column(table, None, "text") is None
    assert chats.chat_column(table, "text", None) is None
    assert chats.chat_column(Table(name="a", columns={"messages": ["a text"]}), None, None) is None
