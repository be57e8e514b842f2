"""Cards in notebooks: the text of a console, in a fixed-width font that takes its colours from the page."""

from __future__ import annotations

import html
import sys

_STYLE = "white-space: pre; overflow-x: auto; line-height: 1.3; font-size: 90%"


class ShownAsCard:
    """What a notebook shows as the card that `print` prints."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return card_html(str(self))


def card_html(text: str) -> str:
    """Returns a card as HTML, its headlines bold: the lines that begin at the margin."""
    lines = [html.escape(line) for line in text.splitlines()]
    marked = (f"<b>{line}</b>" if line and not line.startswith(" ") else line for line in lines)
    return f'<pre style="{_STYLE}">' + "\n".join(marked) + "</pre>"


def in_notebook() -> bool:
    """Returns whether this process runs the cells of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config
