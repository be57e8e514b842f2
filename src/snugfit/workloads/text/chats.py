"""Conversations for `causal-lm`: a column of turns becomes token ids, and of those what the assistant says is learned.

A turn is `{"role": ..., "content": ...}` (the `messages` of most data sets) or `{"from": ..., "value": ...}` (the
`conversations` of ShareGPT, whose human and gpt are user and assistant); whatever else it has (`tool_calls`, `name`,
`reasoning_content`, ...) goes to the template as it is, and a column `tools` beside it. Content may be text, or a list of
text parts. How a conversation is written, and
what of it is said by the assistant, is in `chat_spans.py`.

The text is turned into tokens once, as `apply_chat_template` does it, and what is learned is found by the places of the
tokens in the text: a token of which any character is said is learned, as in transformers' masks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from snugfit.errors import InputError
from snugfit.workloads.text.chat_spans import Chat, Turn, written
from snugfit.workloads.text.ragged import Ids
from snugfit.workloads.text.stored import Column
from snugfit.workloads.text.tables import Table
from snugfit.workloads.text.tokenizer import encode, end_id

CHAT = ("messages", "conversations", "conversation", "chat", "dialog", "dialogue", "turns", "chosen")
"""Names of columns that hold conversations, the most telling first."""
TOOLS = "tools"
"""Name of the column with the tools that the assistant of a conversation may call."""
ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatgpt": "assistant"}
"""Words for a role that data sets use -> the word that templates know."""


def is_chat(values: Column) -> bool:
    """Returns whether a column holds conversations: its first value that is not missing is a list of turns."""
    first = next((value for value in values if value is not None), None)
    return isinstance(first, list | tuple | np.ndarray) and (not len(first) or isinstance(first[0], dict))


def chat_column(table: Table, prompt: str | None, text: str | None) -> str | None:
    """Returns the column of conversations, or None where the table has texts; the user may have named columns."""
    if prompt is not None:
        return None
    known = {name.lower(): name for name in table.columns}
    names = [text] if text is not None else [known[name] for name in CHAT if name in known]
    return next((name for name in names if name in table.columns and is_chat(table.columns[name])), None)


def chats_of(table: Table, column: str) -> Iterator[Chat]:
    """Yields the conversations of a column; an error names the row that has none, or a turn not understood.

    Where the table has a column of conversations named `prompt`, each is put before that of its row.
    """
    known = {name.lower(): name for name in table.columns}
    asked = known.get("prompt")
    columns = [asked, column] if asked not in (None, column) and is_chat(table.columns[asked]) else [column]
    tools: Iterable[Any] = table.columns[known[TOOLS]] if TOOLS in known else [None] * len(table)
    for row, (*parts, given) in enumerate(zip(*(table.columns[name] for name in columns), tools, strict=True)):
        where = f"data {table.name!r}, {table.where(row)}"
        turns: list[Turn] = []
        for name, value in zip(columns, parts, strict=True):
            if not isinstance(value, list | tuple | np.ndarray) or not len(value):
                raise InputError(f"{where}: {name} is {str(value)[:80]!r}; give a list of turns, or remove the row.")
            turns += [_turn(turn, f"{where}: {name}[{at}]") for at, turn in enumerate(value)]
        yield Chat(turns, _tools(given, where))


def _turn(turn: Any, where: str) -> Turn:
    given = {key: value for key, value in turn.items() if value is not None} if isinstance(turn, dict) else {}
    role, content = given.pop("role", given.pop("from", None)), given.pop("content", given.pop("value", None))
    if not isinstance(role, str) or not role.strip():
        raise InputError(
            f'{where} is {str(turn)[:80]!r}; a turn is {{"role": "user", "content": "..."}} or '
            '{"from": "human", "value": "..."}.'
        )
    calls = given.get("tool_calls")
    if calls is not None and not all(map(_is_call, calls if isinstance(calls, list) and calls else [None])):
        if calls == []:
            del given["tool_calls"]
        else:
            raise InputError(
                f"{where}: the tool_calls of {role!r} are {str(calls)[:80]!r}; give a list of "
                '{"type": "function", "function": {"name": "...", "arguments": {...}}}.'
            )
    content = _content(content, f"{where}: the content of {role!r}")
    if content is None and "tool_calls" not in given:
        raise InputError(f"{where}: {role!r} has neither content nor tool_calls; give one of them, or remove the row.")
    word = role.strip().lower()
    said = {} if content is None else {"content": content}
    return {"role": ROLES.get(word, word), **said, **given}


def _content(given: Any, what: str) -> Any:
    """What a turn says: text, or a list of text parts; None where it says nothing."""
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, list | tuple | np.ndarray):
        raise InputError(
            f"{what} is {str(given)[:80]!r} ({type(given).__name__}); give text, or a list of "
            '{"type": "text", "text": "..."}.'
        )
    parts = []
    for part in given:
        # tables give each part the keys of all
        kept = {key: one for key, one in part.items() if one is not None} if isinstance(part, dict) else {}
        if kept.get("type") != "text" or not isinstance(kept.get("text"), str):
            raise InputError(
                f"{what} has the part {str(kept or part)[:80]!r}, and only parts of text are learned: "
                '{"type": "text", "text": "..."}. Remove images and other parts, or the row.'
            )
        parts.append(kept)
    return parts or None


def _is_call(call: Any) -> bool:
    function = call.get("function", call) if isinstance(call, dict) else {}
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _tools(given: Any, where: str) -> list[Any] | None:
    """The tools of a row, which some data sets store as JSON."""
    tools = given
    if isinstance(given, str) and given.strip():
        try:
            tools = json.loads(given)
        except ValueError:
            tools = [None]
    if tools is None or not len(tools):
        return None
    if not isinstance(tools, list | tuple | np.ndarray) or not all(isinstance(tool, dict) for tool in tools):
        raise InputError(
            f"{where}: {TOOLS} is {str(given)[:80]!r}; give a list of JSON schemas of functions, or remove the column."
        )
    return list(tools)


def encode_chats(tokenizer: Any, chats: Iterable[Chat]) -> Iterator[Ids]:
    """Yields conversations as token ids."""
    front = None if getattr(tokenizer, "chat_template", None) else ~_first_ids(tokenizer)
    for chat in chats:
        text, spans = written(tokenizer, chat)
        ids, begins, ends = _with_places(tokenizer, text, sorted({place for span in spans for place in span}))
        said = np.zeros(len(ids), dtype=bool)
        for start, end in spans:
            said |= (ends > start) & (begins < end)
        held = np.where(said, ids, ~ids).astype(np.int32)
        yield held if front is None else np.concatenate([front, held])


def _with_places(tokenizer: Any, text: str, borders: Sequence[int]) -> tuple[Ids, np.ndarray, np.ndarray]:
    """The ids of a text with each token's span of characters; bounds only, where the tokenizer knows no better."""
    if getattr(tokenizer, "is_fast", False):
        made = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        offsets = np.asarray(made["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        return np.asarray(made["input_ids"], dtype=np.int32), offsets[:, 0], offsets[:, 1]
    texts = [text, *(text[:border] for border in borders)]
    whole, *fronts = (np.asarray(ids) for ids in encode(tokenizer, texts, special=False, show=False))
    places = np.zeros(len(whole), dtype=np.int64)
    for border, front in zip(borders, fronts, strict=True):
        same = whole[: len(front)] != front[: len(whole)]
        places[int(same.argmax()) if same.any() else len(front) :] = border
    return whole.astype(np.int32), places, places + 1


def _first_ids(tokenizer: Any) -> Ids:
    """Returns the ids that the tokenizer puts before every text; a chat template writes those itself."""
    end = end_id(tokenizer)
    whole = [int(one) for one in tokenizer("a", verbose=False)["input_ids"]]
    bare = [int(one) for one in tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]]
    front = whole[: len(whole) - len(bare) - (whole[-1] == end and whole != bare)]
    return np.asarray(front, dtype=np.int32)
