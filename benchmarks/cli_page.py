"""Makes the page of the command line from the commands' own parsers: `docs/reference/cli.md`."""

from __future__ import annotations

import argparse
import importlib
import textwrap
from collections import Counter

from snugfit.cli import COMMANDS

PLAIN = ("positional arguments", "options")
"""Groups that argparse names itself."""


def cli_page() -> str:
    """Every command with its examples and options; groups that several commands share stand once, at the end."""
    sections = {name: dict(_groups(name)) for name in COMMANDS}
    times = Counter(item for groups in sections.values() for item in groups.items())
    parts = [
        "# Command line",
        "Made from the commands' parsers by `make docs`. Every command also takes `--help`. Exit codes: 0 done, 2 bad "
        "input, 3 does not fit, 4 training failed, 5 cannot be simulated, 130 stopped by Ctrl-C after saving.",
        "\n".join(f"- [`snugfit {name}`](#snugfit-{name}): {purpose}" for name, purpose in COMMANDS.items()),
    ]
    for name in COMMANDS:
        parts += [f"## snugfit {name}", f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}.", *_examples(name)]
        shared = []
        for title, options in sections[name].items():
            if times[title, options] > 1 and title not in PLAIN:
                shared.append(f"[{title}](#{_anchor(title)})")
            else:
                parts += [f"**{title[0].upper()}{title[1:]}**", options]
        if shared:
            parts.append(f"Also: {', '.join(shared)}.")
    for (title, options), count in times.items():
        if count > 1 and title not in PLAIN:
            parts += [f"## {title[0].upper()}{title[1:]}", options]
    return "\n\n".join(parts) + "\n"


def _groups(command: str) -> list[tuple[str, str]]:
    """Returns the title of each group of a command's options, and these options as a list."""
    parser = argparse.ArgumentParser(add_help=False)
    importlib.import_module(f"snugfit.cli.{command}").add_arguments(parser)
    found = []
    for group in parser._action_groups:
        lines = [_option(action) for action in group._group_actions if action.help != argparse.SUPPRESS]
        if lines:
            found.append((group.title or "", "\n".join(lines)))
    return found


def _option(action: argparse.Action) -> str:
    word = str(action.metavar or "")
    if action.nargs != 0 and not word:
        word = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    spelled = ", ".join(action.option_strings)
    shown = f"{spelled} {word}".strip() if action.nargs != 0 else spelled
    return f"- `{shown}`: {(action.help or '') % vars(action)}"


def _examples(command: str) -> list[str]:
    """Returns what a command's docstring says below its first line."""
    parts = []
    text = importlib.import_module(f"snugfit.cli.{command}").__doc__ or ""
    for paragraph in textwrap.dedent(text.partition("\n\n")[2]).strip().split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        if first == "Examples:":
            parts.append(f"```\n{textwrap.dedent(rest)}\n```")
        elif paragraph:
            parts.append(" ".join(paragraph.split()))
    return parts


def _anchor(title: str) -> str:
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")
