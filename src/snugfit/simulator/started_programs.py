"""Programs that a script starts: one that only reads is run, and one that keeps files is taken to have done it.

What a shell would do else is seen to fail, as scripts expect it to on some machines. Any other program is refused.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from snugfit.attributes import Change
from snugfit.errors import warn

_READING = frozenset({
    "true", "false", "echo", "stty", "hostname", "uname", "whoami", "id", "nproc", "lscpu", "free", "which", "tput",
    "nvidia-smi",
})  # fmt: skip
_READING_OF_GIT = frozenset({
    "rev-parse", "describe", "log", "status", "diff", "show", "rev-list", "ls-files", "symbolic-ref", "cat-file", "version",
    "--version",
})  # fmt: skip
_QUERIES = ("-q", "-L", "--query", "--list")
_KEEPING = frozenset({"mkdir", "cp", "mv", "rm", "touch", "ln", "chmod", "rsync", "zip", "tar", "clear"})
_FAILED = "{!r} is not run in an estimate: the script sees it fail."
_SILENCED = re.compile(r"\s*\d?>\s*/dev/null|\s*2>&1")
_SHELLS = "sh", "bash"


def only_reads(command: Any) -> bool:
    """Returns whether a command, a text or its words, starts a program that leaves everything as it is."""
    name, *others = _words(command) or [""]
    if name == "git":
        return bool(others) and others[0] in _READING_OF_GIT
    if name == "nvidia-smi" and others:  # which sets clocks and limits, too
        return any(one.startswith(_QUERIES) for one in others)
    if name == "hostname":
        return all(one.startswith("-") for one in others)
    return name in _READING


def programs() -> list[Change]:
    """Returns the replacements of Python's ways to start a program; what else is started, an audit hook refuses."""
    begin = subprocess.Popen.__init__

    def begun(self: Any, args: Any, *more: Any, **named: Any) -> None:
        words, of_shell = _words(args), isinstance(args, str | bytes)
        instead = ["false"] if of_shell and not only_reads(args) else None
        if words == ["stty", "size"]:  # how wide a bar may be, asked of a terminal that a worker does not have
            size = shutil.get_terminal_size()
            instead = ["echo", str(size.lines), str(size.columns)]
        elif words and words[0] in _KEEPING:
            instead = ["true"]
        elif instead:
            warn(_FAILED.format(args))
        if instead:
            args = " ".join(instead) if of_shell else instead
        begin(self, args, *more, **named)

    def system(command: str) -> int:
        words = _words(command)
        if words and words[0] in _KEEPING:
            return 0
        warn(_FAILED.format(command))
        return 1 << 8

    return [(subprocess.Popen, "__init__", begun), (os, "system", system)]


def _words(command: Any) -> Sequence[str]:
    """Returns the words of one plain command, its program without a folder; none of what a shell would make more of."""
    if isinstance(command, str | bytes):
        text = _SILENCED.sub("", os.fsdecode(command))
        if re.search(r"[;&|<>`$\n]", text):
            return []
        try:
            words = shlex.split(text)
        except ValueError:  # a quote that has no end
            return []
    else:
        words = [os.fsdecode(word) for word in command]
        if len(words) == 3 and PurePath(words[0]).name in _SHELLS and words[1] == "-c":
            return _words(words[2])
    return [PurePath(words[0]).name, *words[1:]] if words else []
