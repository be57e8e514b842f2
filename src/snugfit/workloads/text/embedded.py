"""Data that needs no network: Python's own help texts (`pydoc_data.topics`), about 450 kB of English in 79 pages.

- `topics`: which family of topics a short passage is from. A paragraph that stands on several pages counts once, so no
  passage of one part is quoted in another. The pages themselves are in all parts: held-out pages make a task too hard to
  show learning in a minute (character n-grams with logistic regression reach 53 % of five families, with held-out
  passages 84 % of six).
- `prose`: the text itself, for language models; here whole pages are held out.

The texts differ a little between versions of Python; pages that one does not have are left out.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

from snugfit.errors import InputError

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "statements": ("compound", "assignment", "import", "raise", "global", "nonlocal", "assert", "return"),
    "special methods": ("specialnames", "customization", "attribute-access", "numeric-types", "sequence-types"),
    "built-in types": ("typesseq", "string-methods", "typesmapping"),
    "type hierarchy": ("types", "objects"),
    "formats": ("formatstrings",),
    "debugger": ("debugger",),
}
"""Family -> its pages."""

PASSAGE = 240
"""Characters of a passage, at most."""

_SHORTEST = 80
_QUOTED = 40
"""A paragraph of fewer characters may stand on several pages."""


def passages() -> tuple[list[str], list[str]]:
    """Returns passages and the family of each; `InputError` where this Python has no help texts."""
    pages = _pages()
    seen: set[str] = set()
    texts: list[str] = []
    labels: list[str] = []
    for family, names in FAMILIES.items():
        for name in names:
            words = " ".join(" ".join(_fresh(_paragraphs(pages.get(name, "")), seen)).split())
            found = [piece for piece in textwrap.wrap(words, PASSAGE) if len(piece) >= _SHORTEST]
            texts += found
            labels += [family] * len(found)
    return texts, labels


def prose() -> list[str]:
    """Returns one text for each page, by name, without paragraphs of earlier pages."""
    pages = _pages()
    seen: set[str] = set()
    documents = ("\n\n".join(_fresh(_paragraphs(pages[name]), seen)) for name in sorted(pages))
    return [document for document in documents if len(document) >= _SHORTEST]


def _pages() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise InputError(
            f"data 'topics' and 'prose' are Python's own help texts, and this Python comes without them ({error}). Give "
            "text:FILE or csv:FILE instead."
        ) from error
    return dict(topics)


def _paragraphs(page: str) -> list[str]:
    return [paragraph.strip("\n") for paragraph in re.split(r"\n\s*\n", page) if paragraph.strip()]


def _fresh(paragraphs: Sequence[str], seen: set[str]) -> list[str]:
    """Drops paragraphs seen before, and remembers the others; spacing does not count."""
    fresh = []
    for paragraph in paragraphs:
        key = " ".join(paragraph.split())
        if key not in seen:
            fresh.append(paragraph)
        if len(key) >= _QUOTED:
            seen.add(key)
    return fresh
