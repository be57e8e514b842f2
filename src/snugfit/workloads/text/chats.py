"""Conversations for `causal-lm`: a column of turns becomes token ids, and of those what the assistant says is learned.

A turn is `{"role": ..., "content": ...}` (the `messages` of most data sets) or `{"from": ..., "value": ...}` (the
`conversations` of ShareGPT, whose human and gpt are user and assistant). They are written as the tokenizer's chat template
has it. Without a template a turn is one line, `role: content`, and the end token stands behind what the assistant says.

The conversation is cut where an assistant's turn begins and ends, and the pieces are turned into tokens apart, so that no
token is half learned. A template that writes earlier turns otherwise once a later one follows (some leave out their
reasoning) cannot be cut everywhere; then only the last turn of the assistant is learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from snugfit.errors import InputError
from snugfit.workloads.text.ragged import Ids
from snugfit.workloads.text.stored import Column
from snugfit.workloads.text.tables import Table
from snugfit.workloads.text.tokenizer import encode, end_id

CHAT = ("messages", "conversations", "conversation", "chat", "dialog", "dialogue", "turns")
"""Names of columns that hold conversations, the most telling first."""
ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatgpt": "assistant"}
"""Words for a role that data sets use -> the word that templates know."""
ASSISTANT = "assistant"

Piece = tuple[str, bool]
"""A stretch of text, and whether it is learned."""
Turn = dict[str, str]


def is_chat(values: Column) -> bool:
    """Returns whether a column holds conversations: its first value that is there is a list of turns."""
    first = next((value for value in values if value is not None), None)
    return isinstance(first, list | tuple | np.ndarray) and (not len(first) or isinstance(first[0], dict))


def chat_column(table: Table, prompt: str | None, text: str | None) -> str | None:
    """Returns the column of conversations, or None where the table has texts; the user may have named columns."""
    if prompt is not None:
        return None
    known = {name.lower(): name for name in table.columns}
    names = [text] if text is not None else [known[name] for name in CHAT if name in known]
    return next((name for name in names if name in table.columns and is_chat(table.columns[name])), None)


def turns_of(table: Table, column: str) -> Iterator[list[Turn]]:
    """Yields the conversations of a column; a row that has none, or a turn that is not understood, is named."""
    for row, value in enumerate(table.columns[column]):
        where = f"data {table.name!r}, {table.where(row)}"
        if not isinstance(value, list | tuple | np.ndarray) or not len(value):
            raise InputError(f"{where}: {column} is {str(value)[:80]!r}; give a list of turns, or remove the row.")
        yield [_turn(turn, f"{where}: {column}[{at}]") for at, turn in enumerate(value)]


def _turn(turn: Any, where: str) -> Turn:
    given = turn if isinstance(turn, dict) else {}
    role, content = given.get("role", given.get("from")), given.get("content", given.get("value"))
    if not isinstance(role, str) or not role.strip():
        raise InputError(
            f'{where} is {str(turn)[:80]!r}; a turn is {{"role": "user", "content": "..."}} or '
            '{"from": "human", "value": "..."}.'
        )
    if not isinstance(content, str):
        raise InputError(
            f"{where}: the content of {role!r} is a {type(content).__name__}, not text. Images, tools and other parts "
            "cannot be learned; remove the row."
        )
    word = role.strip().lower()
    return {"role": ROLES.get(word, word), "content": content}


def pieces_of(tokenizer: Any, turns: list[Turn]) -> list[Piece]:
    """Cuts a conversation, written by the tokenizer's chat template if it has one, into what is learned and what is read."""
    if not getattr(tokenizer, "chat_template", None):
        return [piece for turn in turns for piece in _plain(turn, tokenizer)]

    def written(count: int, *, asking: bool = False) -> str:
        try:
            return str(tokenizer.apply_chat_template(turns[:count], tokenize=False, add_generation_prompt=asking))
        except Exception as error:  # a template is a program of its author's
            raise InputError(
                f"the tokenizer's chat template refuses a conversation of {', '.join(turn['role'] for turn in turns)}: "
                f"{type(error).__name__}: {' '.join(str(error).split())[:200]}. Change the data or the template."
            ) from error

    whole = written(len(turns))
    speaks = [at for at, turn in enumerate(turns) if turn["role"] == ASSISTANT]
    for chosen in (speaks, speaks[-1:]):
        borders = [(written(at, asking=True), written(at + 1)) for at in chosen]
        if all(whole.startswith(end) and end.startswith(start) for start, end in borders):
            pieces: list[Piece] = []
            done = 0
            for start, end in borders:
                pieces += [(whole[done : len(start)], False), (whole[len(start) : len(end)], True)]
                done = len(end)
            return [*pieces, (whole[done:], False)]
    raise InputError(
        "the tokenizer's chat template writes the last turn so that what the assistant says cannot be told apart. Give the "
        "data as prompt and completion."
    )


def _plain(turn: Turn, tokenizer: Any) -> list[Piece]:
    if turn["role"] != ASSISTANT:
        return [(f"{turn['role']}: {turn['content']}\n", False)]
    end = getattr(tokenizer, "eos_token", None) or ""
    return [(f"{ASSISTANT}: ", False), (turn["content"] + end, True), ("\n", False)]


def encode_chats(tokenizer: Any, conversations: Iterable[list[Turn]]) -> Iterator[Ids]:
    """Yields conversations as token ids."""
    starts = None if getattr(tokenizer, "chat_template", None) else ~_first_ids(tokenizer)
    for turns in conversations:
        pieces = [piece for piece in pieces_of(tokenizer, turns) if piece[0]]
        encoded = encode(tokenizer, [text for text, _ in pieces], special=False, show=False)
        ids: list[Ids] = [] if starts is None else [starts]
        for one, (_, learned) in zip(encoded, pieces, strict=True):
            held = np.asarray(one, dtype=np.int32)
            ids.append(held if learned else ~held)
        yield np.concatenate(ids)


def _first_ids(tokenizer: Any) -> Ids:
    """Returns what the tokenizer puts before every text; a template writes that by itself."""
    end = end_id(tokenizer)
    whole = [int(one) for one in tokenizer("a", verbose=False)["input_ids"]]
    bare = [int(one) for one in tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]]
    front = whole[: len(whole) - len(bare) - (whole[-1] == end and whole != bare)]
    return np.asarray(front, dtype=np.int32)
