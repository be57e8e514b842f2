"""Runs the code of the tutorials, as a reader would type it, and writes what it prints into them.

    python -m benchmarks.tutorials [quickstart own_loop ...]

A block with a title is a file, `python` blocks share one process, and lines of `sh` blocks are typed one after the other
(installing is left out). A `text` block after `<!-- output ... -->` is what was printed since the one before it, or its
first lines.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import sys
import tempfile
from pathlib import Path
from unittest import mock

from snugfit.cli import main as snugfit

DOCS = Path(__file__).parent.parent / "docs"
PAGES = (DOCS / "quickstart.md", *sorted((DOCS / "tutorials").glob("*.md")))
_BLOCK = re.compile(
    r"^```(?P<kind>python|sh|yaml|json)(?: title=\"(?P<file>.+?)\")?\n(?P<code>.*?)^```\n"
    r"|^<!-- output(?:, first (?P<most>\d+) lines)?: .*?-->\n```text\n(?P<shown>.*?)^```\n",
    re.MULTILINE | re.DOTALL,
)


def run(page: Path) -> tuple[str, list[tuple[str, str]]]:
    """Runs a page in the current folder, which gets its files.

    Args:
        page: A Markdown file.

    Returns:
        The page with what was printed this time; and for each output what the page shows, and all that was printed.
    """
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "__main__"}
    printed, outputs = io.StringIO(), []

    def carried_out(found: re.Match[str]) -> str:
        if found["shown"] is not None:
            lines = [line.rstrip() for line in printed.getvalue().strip("\n").splitlines()]
            outputs.append((found["shown"], printed.getvalue()))
            printed.seek(0), printed.truncate()
            most = int(found["most"] or len(lines))
            shown = "\n".join([*lines[:most], *(["..."] if lines[most:] else [])])
            return found[0].replace(f"```text\n{found['shown']}", f"```text\n{shown}\n")
        if found["file"]:
            Path(found["file"]).parent.mkdir(parents=True, exist_ok=True)
            Path(found["file"]).write_text(found["code"], encoding="utf-8")
        elif found["kind"] == "python":
            exec(compile(found["code"], page.name, "exec"), names)
        elif found["kind"] == "sh":
            for line in found["code"].replace("\\\n", " ").splitlines():
                _type(shlex.split(line, comments=True))
        return found[0]

    folder = str(Path.cwd())
    with contextlib.redirect_stdout(printed), mock.patch.object(sys, "path", [folder, *sys.path]):
        try:
            return _BLOCK.sub(carried_out, text), outputs
        finally:  # another page has another model.py
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__file__", None)).startswith(folder):
                    del sys.modules[name]


def _type(words: list[str]) -> None:
    """Does what a line of a shell says; `RuntimeError` where it ends with an error."""
    if words[-2:-1] == [">"]:
        with Path(words[-1]).open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
            return _type(words[:-2])
    if words[:1] == ["snugfit"]:
        if code := snugfit(words[1:]):
            raise RuntimeError(f"{shlex.join(words)} ended with exit code {code}")
    elif words[:1] == ["python"]:
        with mock.patch.object(sys, "argv", words[1:]):
            runpy.run_path(words[1], run_name="__main__")
    elif words and words[0] != "pip":
        raise RuntimeError(f"{shlex.join(words)} cannot be run here")


def main() -> None:
    asked = set(sys.argv[1:])
    for page in PAGES:
        if not asked or page.stem in asked:
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                made, _ = run(page)
            page.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
