"""How other tools spell the values of recipe and training settings, for "did you mean" where the letters are too far apart.

Every tool has its own word for the same thing: bf16 is bf16-mixed to one and bf16-true to another, so both are named with
what they mean. Nothing is accepted under another name; it is only recognised. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from snugfit.errors import did_you_mean
from snugfit.techniques import joined
from snugfit.techniques.declaration import Spellings

SWITCH_WORDS = ("true", "yes", "on", "false", "no", "off")
"""Words for a switch, which no module is called; a field that takes names of modules refuses them at once."""

_SCHEDULES = {("cos", "cosine-annealing"): ("cosine",), ("none", "const", "constant-with-warmup"): ("constant",)}
SPELLINGS: Mapping[str, Spellings] = {**joined("spellings"), "lr_schedule": _SCHEDULES}
"""Field -> words that other tools use -> the values here that they may stand for, the likeliest first."""
MEANINGS: Mapping[str, Mapping[str, str]] = joined("meanings")
"""Field -> value -> what it means, where a suggestion alone would not say enough."""


def meant(field: str, given: Any, allowed: Iterable[str]) -> tuple[str, ...]:
    """Returns the allowed values that a word may stand for, likeliest first; `given` is text, or what YAML read (16)."""
    word = re.sub(r"[\s_]+", "-", str(given).strip().lower())
    squeezed = word.replace("-", "")
    same = tuple(value for value in allowed if re.sub("[-_]", "", value) == squeezed)
    if same:
        return same
    for words, values in SPELLINGS.get(field, {}).items():
        if word in words or squeezed in (other.replace("-", "") for other in words):
            return values
    return ()


def suggestion(field: str, given: Any, allowed: Iterable[str]) -> str:
    """Returns the end of a message about an unknown value: what may have been meant, then what is allowed."""
    values = list(allowed)
    found = meant(field, given, values)
    if not found:
        return did_you_mean(str(given), values)
    meanings = MEANINGS.get(field, {})
    words = [f"{value!r} ({meanings[value]})" if value in meanings else repr(value) for value in found]
    hint = f"did you mean {' or '.join(words)}?"
    return f"{hint} Allowed: {', '.join(values)}." if values else hint
