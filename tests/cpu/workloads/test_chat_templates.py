"""Twenty chat templates, twelve conversations, three kinds of tokenizers: ids and labels of each.

Ids are those of `apply_chat_template`; labels are what the assistant says, as transformers finds it by marks that the same
template has, written by hand, where our reading of the template without marks must find it.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
from chat_templates import CONVERSATIONS, TEMPLATES, marked, plain, tokenizer_of

from snugfit.errors import InputError
from snugfit.workloads.text.chats import chats_of, encode_chats
from snugfit.workloads.text.ragged import tokens_of
from snugfit.workloads.text.tables import Table

KINDS = ("byte-level", "unigram", "marked text")


def chat(name):
    turns, tools = CONVERSATIONS[name]
    return next(chats_of(Table(name="a", columns={"messages": [turns], "tools": [tools]}), "messages"))


def with_template(kind, template):
    made = copy.copy(tokenizer_of(kind))
    made.chat_template = template
    return made


def truth(tokenizer, name):
    """Ids and what of them is said, by transformers and the marks; None where the template refuses."""
    turns, tools = CONVERSATIONS[name]
    try:
        made = tokenizer.apply_chat_template(
            turns, tools=tools, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
    except Exception:
        return None
    return made["input_ids"], np.array(made["assistant_masks"], dtype=bool)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_ids_are_the_templates_and_labels_what_the_assistant_says(template, kind):
    by_marks, by_structure = (with_template(kind, make(TEMPLATES[template])) for make in (marked, plain))
    answered = 0
    for name in CONVERSATIONS:
        expected = truth(by_marks, name)
        for tokenizer in (by_structure, by_marks):
            if expected is None:
                with pytest.raises(InputError, match="chat template refuses"):
                    list(encode_chats(tokenizer, [chat(name)]))
                continue
            ids, said = expected
            (held,) = encode_chats(tokenizer, [chat(name)])
            assert tokens_of(held).tolist() == ids, name
            found, wanted = (tokenizer.convert_ids_to_tokens(np.array(ids)[mask]) for mask in (held >= 0, said))
            assert found == wanted, name
            assert ((held >= 0) == said).all(), name
        answered += expected is not None
    assert answered >= 7


def test_there_are_as_many_as_is_said():
    assert (len(TEMPLATES), len(CONVERSATIONS)) == (20, 12)
