"""One self-contained page of documents of snugfit, for a browser without network.

`page.html` is the frame; styles, scripts and the charts' library (`vendored/`) are put into it when it is written, and the
documents as one JSON. Nothing of a document is ever HTML: the script sets texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from snugfit.report.page.comparison import comparison
from snugfit.report.page.documents import kind_of, shown
from snugfit.report.timeline import COLOURS

__all__ = ["kind_of", "live_page", "page", "page_data", "shown"]


def page_data(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what the page's script shows of one or two shown documents."""
    compared = comparison(*documents) if len(documents) == 2 else {}
    return {"documents": documents, "comparison": compared, "colours": COLOURS}


def page(documents: Sequence[Mapping[str, Any]]) -> str:
    """Returns a whole HTML document of one or two shown documents."""
    return _filled(page_data(documents), scripts=_SCRIPTS, connect="'none'")


def live_page(form: Mapping[str, Any]) -> str:
    """Returns a whole HTML document that asks the server it comes from, by a form (`serve.js`), and shows the answers."""
    return _filled({"form": form}, scripts=(*_SCRIPTS, "serve.js"), connect="'self'")


_SCRIPTS = ("words.js", "charts.js", "dial.js", "page.js")


def _filled(data: Mapping[str, Any], *, scripts: Sequence[str], connect: str) -> str:
    folder = resources.files(__name__)

    def read(*names: str) -> str:
        return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)

    parts = {
        "CONNECT": connect,
        "STYLE": read("page.css"),
        "LIBRARY": read("vendored/echarts.min.js"),
        "SCRIPT": read(*scripts),
        # `</` must not end the script early, whatever a module is called; nor may `<!--` begin a comment in it.
        "DATA": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }
    frame = read("page.html")
    for name, text in parts.items():
        before, _, after = frame.partition(f"@{name}@")
        frame = before + text + after
    return frame
