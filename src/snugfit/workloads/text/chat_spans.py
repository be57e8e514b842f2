"""Conversations as text, written by the tokenizer's chat template, and which stretches of it the assistant says.

The whole is written once, as `apply_chat_template` writes it. What the assistant says of it is

- what the template itself marks with `{% generation %}`, or else
- per turn of the assistant, what the template writes for it after its prompt for an answer (`add_generation_prompt`), the
  end of the turn included. White space behind a special token that ends the turn is not said any more.

Many templates write a turn otherwise once others follow: they drop its reasoning, or list the tools elsewhere. A turn is
then found in the whole by changing something in it and looking which stretches stay the same.

Content that is a list of parts is given to the template as it is, where that reads parts: models that see do, most others
would write the list itself or fail. These get the texts of a turn's parts, joined with nothing in between.

Without a template a turn is one line, `role: content`, and the end token stands behind what the assistant says.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable
from typing import Any

from snugfit.errors import InputError, in_words

ASSISTANT = "assistant"
_MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
_OTHER = "\ue0f7"
"""A character for private use: in no conversation, and in no template."""

Turn = dict[str, Any]
Span = tuple[int, int]
"""Characters from one to before another."""


@dataclasses.dataclass(frozen=True, slots=True)
class Chat:
    """A conversation."""

    turns: list[Turn]
    """Each with its `role` and what it says."""
    tools: list[Any] | None = None
    """Tools that the assistant may call."""


def written(tokenizer: Any, chat: Chat) -> tuple[str, list[Span]]:
    """Writes a conversation; returns its text and the spans that are learned.

    `InputError` where the template refuses it, or does not write what the assistant says.
    """
    if not _reads_parts(tokenizer, chat):
        chat = dataclasses.replace(chat, turns=_with_texts(chat.turns))
    if not getattr(tokenizer, "chat_template", None):
        return _plain(tokenizer, chat)
    template = tokenizer.get_chat_template(None, chat.tools)
    text = _rendered(tokenizer, chat, chat.turns)
    _check_calls(tokenizer, chat, text)
    if _MARKED.search(template):
        return _by_marks(tokenizer, template, chat)
    spans = []
    for at, turn in enumerate(chat.turns):
        if turn["role"] == ASSISTANT:
            start, end = _Turn(tokenizer, chat, at, text).span()
            spans.append((start, _without_space_behind_end(text, start, end, tokenizer)))
    return text, spans


def _reads_parts(tokenizer: Any, chat: Chat) -> bool:
    """Whether the template knows content that is a list: it writes the text of each part, and nothing else of it."""
    listed = [turn for turn in chat.turns if isinstance(turn.get("content"), list)]
    if not listed:
        return True
    if not getattr(tokenizer, "chat_template", None):
        return False
    more = [
        {**turn, "content": [{**part, _OTHER: _OTHER} for part in turn["content"]]} if turn in listed else turn
        for turn in chat.turns
    ]
    try:
        text, with_more = (_rendered(tokenizer, chat, turns) for turns in (chat.turns, more))
    except InputError:
        return False
    if text != with_more:
        return False
    as_text = _rendered(tokenizer, chat, _with_texts(chat.turns))
    parts = [part["text"].strip() for turn in listed for part in turn["content"]]
    return all(part in text or part not in as_text for part in parts)  # templates leave out earlier reasoning


def _with_texts(turns: list[Turn]) -> list[Turn]:
    """The turns with the text of their parts, and without parts."""
    return [
        {**turn, "content": "".join(part["text"] for part in turn["content"])}
        if isinstance(turn.get("content"), list)
        else turn
        for turn in turns
    ]


def _plain(tokenizer: Any, chat: Chat) -> tuple[str, list[Span]]:
    if chat.tools or any("tool_calls" in turn for turn in chat.turns):
        raise InputError(
            "the data calls tools, and the tokenizer has no chat template that says how that is written. Give a tokenizer "
            "with one (chat_template in its tokenizer_config.json, or chat_template.jinja beside it)."
        )
    end, text, spans = getattr(tokenizer, "eos_token", None) or "", "", []
    for turn in chat.turns:
        text += f"{turn['role']}: "
        if turn["role"] == ASSISTANT:
            spans.append((len(text), len(text) + len(turn["content"] + end)))
            text += f"{turn['content']}{end}\n"
        else:
            text += f"{turn['content']}\n"
    return text, spans


def _check_calls(tokenizer: Any, chat: Chat, text: str) -> None:
    """Raises for tool calls that a template ignores: it would leave an empty turn to learn from."""
    for at, turn in enumerate(chat.turns):
        if "tool_calls" in turn:
            turns = [*chat.turns[:at], _changed(turn, end=True), *chat.turns[at + 1 :]]
            if _rendered(tokenizer, chat, turns) == text:
                raise InputError(
                    f"the tokenizer's chat template writes nothing of the tool_calls of turn {at + 1}. Give a tokenizer "
                    "whose template does, or write the calls into the content."
                )


def _by_marks(tokenizer: Any, template: str, chat: Chat) -> tuple[str, list[Span]]:
    from transformers.utils.chat_template_utils import render_jinja_template

    def render() -> tuple[str, list[Span]]:
        made: Any = render_jinja_template(
            conversations=[chat.turns],
            tools=chat.tools,
            chat_template=template,
            return_assistant_tokens_mask=True,
            **tokenizer.special_tokens_map,
        )
        return made[0][0], made[1][0]

    found: tuple[str, list[Span]] = _asked(render, chat.turns)
    return found


def _rendered(tokenizer: Any, chat: Chat, turns: list[Turn], *, asking: bool = False) -> str:
    def render() -> str:
        return str(tokenizer.apply_chat_template(turns, tools=chat.tools, tokenize=False, add_generation_prompt=asking))

    text: str = _asked(render, turns)
    return text


def _asked(render: Callable[[], Any], turns: list[Turn]) -> Any:
    try:
        return render()
    except Exception as error:  # a template is a program of its author's
        raise InputError(
            f"the tokenizer's chat template refuses a conversation of {', '.join(turn['role'] for turn in turns)}: "
            f"{in_words(error)}. Change the data or the template."
        ) from error


class _Turn:
    """A turn of the assistant, to be found in the text of its conversation."""

    def __init__(self, tokenizer: Any, chat: Chat, at: int, text: str) -> None:
        self._tokenizer, self._chat, self._at, self._text = tokenizer, chat, at, text
        self._asked = _rendered(tokenizer, chat, chat.turns[:at], asking=True) if at else ""
        self._said = _rendered(tokenizer, chat, chat.turns[: at + 1])

    def span(self) -> Span:
        """Returns the span of characters that the assistant says."""
        if self._text.startswith(self._said) and self._said.startswith(self._asked):
            return len(self._asked), len(self._said)
        start, end = self._from_within()
        if not start < end:
            raise InputError(
                f"the tokenizer's chat template writes turn {self._at + 1} of {len(self._chat.turns)}, the assistant's, so "
                "that it cannot be told apart. Mark it in the template ({% generation %}), or give the data as prompt and "
                "completion."
            )
        return start, end

    def _from_within(self) -> Span:
        """The span by what stays the same around a change of the turn, in the whole and with the turn as the last."""
        text, said = self._text, self._said
        first, last = (_changed(self._chat.turns[self._at], end=end) for end in (False, True))
        if text.startswith(self._asked):
            start = len(self._asked)
        else:
            start = _same_start(text, self._with(first, self._chat.turns))
            begins = _same_start(said, self._with(first, self._chat.turns[: self._at + 1]))
            # What the template writes between its prompt for an answer and the answer itself is said by the assistant,
            # too.
            lead = said[_same_start(said, self._asked) : begins]
            start -= len(lead) if text[:start].endswith(lead) else 0
        ends = len(text) - _same_end(text, self._with(last, self._chat.turns))
        # And so is what it writes behind the answer as the end of the turn.
        tail = said[len(said) - _same_end(said, self._with(last, self._chat.turns[: self._at + 1])) :]
        return start, ends + len(tail if text[ends:].startswith(tail) else self._end_in_between(text[ends:]))

    def _end_in_between(self, rest: str) -> str:
        """What ends a turn that is not the last, if another special token or white space does."""
        mark = next((one for one in _special_tokens(self._tokenizer) if rest.startswith(one)), "")
        return mark or rest[: len(rest) - len(rest.lstrip())]

    def _with(self, turn: Turn, turns: list[Turn]) -> str:
        return _rendered(self._tokenizer, self._chat, [*turns[: self._at], turn, *turns[self._at + 1 :]])


def _changed(turn: Turn, *, end: bool) -> Turn:
    """The turn with one more character at the end of what it says, or with another beginning."""
    made = copy.deepcopy(turn)
    calls = made.get("tool_calls")
    if calls and (end or not made.get("content")):
        call = calls[-1 if end else 0]
        call = call.get("function", call)
        arguments = call.get("arguments")
        if isinstance(arguments, dict) and arguments:
            key = list(arguments)[-1 if end else 0]
            arguments[key] = _longer(str(arguments[key]), end)
        else:
            call["arguments"] = {_OTHER: _OTHER} if isinstance(arguments, dict) else _longer(arguments or "", end)
    elif isinstance(made.get("content"), list):
        if end:
            made["content"][-1]["text"] += _OTHER
        else:
            made["content"] = [{"type": "text", "text": _OTHER}]
    else:
        made["content"] = (made.get("content") or "") + _OTHER if end else _OTHER  # a beginning may be left out
    return made


def _longer(text: str, end: bool) -> str:
    return text + _OTHER if end else _OTHER + text


def _same_start(one: str, other: str) -> int:
    """The length of the common prefix, by bisection: texts are long, and Python's comparison is fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one.startswith(other[:middle]) else (low, middle - 1)
    return low


def _same_end(one: str, other: str) -> int:
    return _same_start(one[::-1], other[::-1])


def _special_tokens(tokenizer: Any) -> list[str]:
    return [str(token) for token in getattr(tokenizer, "added_tokens_decoder", {}).values() if token.special]


def _without_space_behind_end(text: str, start: int, end: int, tokenizer: Any) -> int:
    """The end of a turn without a line break behind its end token: that belongs to the template."""
    said = text[start:end].rstrip()
    return start + len(said) if said.endswith(tuple(_special_tokens(tokenizer))) else end
