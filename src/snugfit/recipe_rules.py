"""Rules of a recipe by itself: values and pairs of fields that no workload can make sense of.

Each is declared by a technique; those that depend on the workload are in `fidelity.py`. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from snugfit.techniques import TECHNIQUES
from snugfit.techniques.declaration import said
from snugfit.techniques.spellings import SWITCH_WORDS, meant, suggestion

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

NAMES = {field: keywords for row in TECHNIQUES for field, keywords in row.names.items()}
"""Fields that take names of modules or patterns -> their words that are no names."""
_FREE = {row.fields[0]: row.free_word for row in TECHNIQUES if row.free_word}


def problems(recipe: Recipe) -> Iterator[str]:
    """Yields a sentence for each value, and each pair of fields, that no workload can make sense of.

    Args:
        recipe: Its fields are of the right types already.

    Yields:
        What was given, what is allowed, and what to do.
    """
    for name in NAMES:
        value = getattr(recipe, name)
        if not value or (isinstance(value, tuple) and not all(isinstance(part, str) and part for part in value)):
            yield f"{name} is {value!r}; give a word such as none or all, or names of modules separated by commas."
        elif isinstance(value, tuple) and len(value) == 1 and value[0].lower() in SWITCH_WORDS:
            yield f"{name} is {value[0]!r}, which is no name of a module; {suggestion(name, value[0], ())}"
    for name, what in _FREE.items():
        value = getattr(recipe, name)
        known = meant(name, value, ())
        if known and value not in known:
            yield f"{name} is {value!r}, which is no {what}; {suggestion(name, value, ())}"
    for row in TECHNIQUES:
        yield from said(row.rules, recipe)
