"""`snugfit completion`: a script with which a shell completes commands, options and their values.

Examples:
  snugfit completion bash >> ~/.bash_completion
  snugfit completion zsh > "${fpath[1]}/_snugfit"
  snugfit completion fish > ~/.config/fish/completions/snugfit.fish

The script is text, so that completing starts no Python. Print it again after an update.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from snugfit.cli import output
from snugfit.device_kinds import CPU, CUDA
from snugfit.errors import InputError, did_you_mean

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the argument of `snugfit completion`."""
    parser.add_argument("shell", metavar="SHELL", help=f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}")


def run(args: argparse.Namespace) -> int:
    """Prints the script."""
    if args.shell not in SHELLS:
        raise InputError(f"shell {args.shell!r} is unknown; {did_you_mean(args.shell, SHELLS)}")
    import shtab

    from snugfit.cli import COMMANDS, parser_with

    parser, commands = parser_with(COMMANDS)
    for name, command in commands.items():
        for action in command._actions:
            _say_values(name, action, files=shtab.FILE, folders=shtab.DIRECTORY)
    output.print_text(shtab.complete(parser, args.shell))
    return 0


def _say_values(command: str, action: Any, *, files: Any, folders: Any) -> None:
    """Tells the script what the value of an option or an argument may be."""
    from snugfit.cli.export import TARGETS
    from snugfit.devices import device_names
    from snugfit.ladder_presets import PRESETS
    from snugfit.techniques import TECHNIQUES

    word = action.metavar or ""
    if word.startswith("{"):
        action.choices = word[1:-1].split(",")
    elif isinstance(action, output.DeviceAction):
        action.choices = ("auto", CPU, CUDA)
    elif action.dest in ("device", "fits") or (command, action.dest) == ("devices", "name"):
        action.choices = (*device_names(), "all")
    elif (command, action.dest) == ("techniques", "name"):
        action.choices = [technique.name for technique in TECHNIQUES]
    elif action.dest == "shell":
        action.choices = SHELLS
    elif (command, action.dest) == ("export", "to"):
        action.choices = TARGETS
    elif (command, action.dest) == ("ladder", "preset"):
        action.choices = tuple(PRESETS)
    elif "DIR" in word:
        action.complete = folders
    elif action.type in (Path, output.some_path) or "FILE" in word or action.dest in ("model", "script"):
        action.complete = files
