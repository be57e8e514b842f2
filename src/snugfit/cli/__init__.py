"""The `snugfit` command: finds the subcommand, runs it, and turns errors into one message and an exit code.

Each subcommand is one file of this package with `add_arguments(parser)` and `run(args) -> int`, and with examples in its
docstring, which `--help` shows. Only the chosen one is
imported, and none of them imports torch before `run`, so that help is there at once.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NoReturn

from snugfit import __version__
from snugfit.errors import InputError, SnugfitError, SnugfitWarning, did_you_mean, nearest, note, on_command_line
from snugfit.report.waiting import say, waits_are_told

COMMANDS = {
    "train": "train a model on data, by a recipe, and measure it",
    "ladder": "train by one recipe after the other, each adding a technique, and compare",
    "estimate": "predict the memory and time of a training run, without a GPU",
    "check": "pass or fail: does it fit these cards, and has it grown since a baseline",
    "plan": "find the fastest recipe that fits a memory budget, without a GPU",
    "report": "show a run, estimate, plan or ladder, or two of them, as one page for a browser",
    "serve": "that page live in a browser on this machine: change model, batch, card or budget",
    "merge": "add the adapter of a run to its full weights, as one plain model",
    "export": "write a recipe in the words of another tool",
    "profile": "run any training script and show where its memory goes",
    "techniques": "explain what can be done to save memory",
    "devices": "list the known devices",
    "calibrate": "measure this machine once, so that predictions of time hold for it",
    "completion": "print a script with which a shell completes commands, options and their values",
    "doctor": "say what is installed here and works, what is missing, and how to get it",
    "verify": "train by six recipes, and hold what was measured against what was predicted",
}
"""Subcommand, which is also the name of its file -> what it is for."""

TAKE_SCRIPTS = ("estimate", "plan", "check")
"""Commands that take a training script in place of a model; the words behind it are its own."""
_SIGPIPE_EXIT = 141
"""What a shell reports for a program whose reader went away."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; `argv` None: the process's own arguments.

    Returns the exit code: 0 done, 2 bad input, 3 does not fit, 4 training failed, 5 cannot be simulated, 130 stopped.
    """
    code = _main(argv)
    if (others := sys.modules.get("snugfit.runs.others")) is not None:  # where a run has several processes
        others.end_at_once(code)
    return code


@contextlib.contextmanager
def spoken_to_a_person() -> Iterator[None]:
    """Context of a command: errors name its options, and notes and warnings are single lines on stderr."""
    with warnings.catch_warnings(), _notes_on_stderr(), on_command_line(), waits_are_told():
        warnings.simplefilter("default", SnugfitWarning)
        warnings.showwarning = _showing_ours_plainly(warnings.showwarning)
        yield


def _main(argv: Sequence[str] | None) -> int:
    args = None
    with spoken_to_a_person():
        try:
            args = parse(sys.argv[1:] if argv is None else argv)
            if args.ours_behind:
                _note_unread(args)
            code: int = args.run(args)
            sys.stdout.flush()
        except SnugfitError as error:
            ours = args.ours_behind if args is not None and isinstance(error, InputError) else []
            behind = f" What stands behind the script is its own: put {', '.join(ours)} before it." if ours else ""
            print(f"snugfit: {error}{behind}", file=sys.stderr)
            return error.exit_code
        except KeyboardInterrupt:
            print("snugfit: stopped.", file=sys.stderr)
            return 130
        except BrokenPipeError:
            # Python flushes stdout once more when it exits; there is nobody left to read it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _SIGPIPE_EXIT
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            print(f"snugfit: {error.strerror}: what was to be written is not all there. Make room.", file=sys.stderr)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return InputError.exit_code
    return code


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the arguments, with a hint for each unknown name; `run` of the result is the subcommand's function."""
    if not argv:
        from snugfit.cli.first_words import first_words

        raise InputError(first_words())
    chosen = next((word for word in argv if not word.startswith("-")), None)
    if chosen is not None and chosen not in COMMANDS:
        if ".py" in chosen or ".ipynb" in chosen or ":" in chosen.strip(":"):
            raise InputError(
                f"{chosen!r} is no command; one stands before it: `snugfit estimate {chosen}`, for example."
            )
        raise InputError(f"unknown command {chosen!r}; {did_you_mean(chosen, COMMANDS)} See `snugfit --help`.")
    argv = _with_module(argv) if chosen in (*TAKE_SCRIPTS, "profile") else argv
    argv, of_script = _up_to_script(argv) if chosen in TAKE_SCRIPTS else (argv, [])
    parser, commands = parser_with([chosen])
    options = _options_of(commands.get(chosen or "", parser))
    see = "see `snugfit --help`." if chosen is None else f"see `snugfit {chosen} --help`."
    wrong = [word.partition("=")[0] for word in argv] if chosen is None else []
    if wrong := [word for word in wrong if word.strip("-") and word not in options]:
        raise InputError(_unknown_option(wrong[0], None, options) + see)
    try:
        args, unknown = parser.parse_known_args(_with_negative_values(argv))
    except argparse.ArgumentError as error:
        what = f"{error.argument_name}: " if error.argument_name else ""
        raise InputError(
            f"{what}{error.message.rstrip('.')}{_help_of(error, commands.get(chosen or ''))}; {see}"
        ) from error
    if unknown:
        word = unknown[0].partition("=")[0]
        if word.startswith("-"):
            raise InputError(_unknown_option(word, chosen, options) + see)
        raise InputError(f"unexpected argument {word!r}; {see}")
    args.of_script, args.ours_behind = of_script, _ours_among(of_script, commands.get(chosen or "", parser))
    return args


def parser_with(names: Collection[str | None]) -> tuple[_Parser, dict[str, _Parser]]:
    """Returns the parser of all commands, of which those of these names have their arguments; and the commands' own."""
    parser = _Parser(prog="snugfit", description="Train any PyTorch model in the memory you have.")
    version = f"snugfit {__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version and exit")
    group, commands = parser.add_subparsers(metavar="COMMAND", title="commands", required=True), {}
    for name, purpose in COMMANDS.items():
        commands[name] = group.add_parser(
            name,
            help=purpose,
            description=purpose[0].upper() + purpose[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name in names:
            commands[name].set_defaults(run=_add_arguments(commands[name], name))
    return parser, commands


def is_script(word: str) -> bool:
    """Whether a word names a Python file or notebook, and no function, model of a library or option; or is `-m MODULE`."""
    return word.startswith("-m ") or (word.endswith((".py", ".ipynb")) and not re.match(r"-|\w\w+:", word))


def _with_module(argv: Sequence[str]) -> Sequence[str]:
    """Makes one word of `-m` and the module behind it, where they stand in the place of a script."""
    number = next((number for number, word in enumerate(argv) if word == "-m" or is_script(word)), len(argv))
    if argv[number:] and argv[number] == "-m":
        if not argv[number + 1 :]:
            raise InputError("-m: give a module, as for `python -m`: -m package.module, then its own arguments.")
        return [*argv[:number], f"-m {argv[number + 1]}", *argv[number + 2 :]]
    return argv


def _up_to_script(argv: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """Cuts a command line behind a Python file: what follows is the script's own."""
    ends = [number for number, word in enumerate(argv, 1) if is_script(word)]
    return (argv[: ends[0]], list(argv[ends[0] :])) if ends else (argv, [])


def _add_arguments(parser: argparse.ArgumentParser, command: str) -> Any:
    """Adds the arguments of a command and its examples, and returns what runs it."""
    module = importlib.import_module(f"{__name__}.{command}")
    module.add_arguments(parser)
    parser.epilog = (module.__doc__ or "").partition("\n\n")[2]
    return module.run


def _options_of(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]


def _ours_among(words: Sequence[str], command: argparse.ArgumentParser) -> list[str]:
    """The options behind a script that are about the answer, not about the training."""
    ours = {
        option
        for action in command._actions
        if not action.dest.startswith(("recipe_", "workload_"))
        for option in action.option_strings
    }
    return [name for word in words if (name := word.partition("=")[0]) in ours]


def _note_unread(args: argparse.Namespace) -> None:
    """Says so where a script is given an option of ours that its text does not name."""
    text = ""
    with contextlib.suppress(OSError, InputError):
        from snugfit.simulator.script import check_script

        text = check_script(args.model).path.read_text(encoding="utf-8", errors="replace")
    if unread := [name for name in args.ours_behind if name not in text]:
        args.ours_behind = [name for name in args.ours_behind if name not in unread]
        names = ", ".join(unread)
        note(
            f"{names}: given to {args.model}, as all that stands behind it. If snugfit is meant, put {names} before it."
        )


def _help_of(error: argparse.ArgumentError, command: argparse.ArgumentParser | None) -> str:
    """What an option takes, where one is typed without a value."""
    if command is None or not error.message.startswith("expected"):
        return ""
    named = (one for one in command._actions if error.argument_name == "/".join(one.option_strings))
    return "".join(f": {one.help}".rstrip(".") for one in named if one.help)


_SAME = {
    "--out": "--run-dir", "--run-dir": "--out", "--output-dir": "--run-dir", "--output": "--out",
    "--device": "--fits", "--baseline": "--against",
}  # fmt: skip
"""Options of other commands and tools -> what the same is called where it is not known."""


def _unknown_option(word: str, chosen: str | None, options: Sequence[str]) -> str:
    """Says where an unknown option belongs, or what may have been meant; ends with `; `."""
    if chosen is not None and word in options:
        return f"option {word!r} stands before the command; put it behind `snugfit {chosen}`; "
    if (same := _SAME.get(word)) in options:
        return f"unknown option {word!r}; here it is {same}; "
    takers = []
    for name in COMMANDS:
        other = _Parser()
        _add_arguments(other, name)
        takers += [f"`snugfit {name}`"] if word in _options_of(other) else []
    if takers and chosen is None:
        return f"option {word!r} needs a command before it; "
    hint = f"{' and '.join(takers)} {'take' if takers[1:] else 'takes'} it; " if takers else nearest(word, options)
    return f"unknown option {word!r}; {hint}"


def _with_negative_values(argv: Sequence[str]) -> list[str]:
    """Attaches words such as -1GiB to the option before them, so that its own check can say what is wrong.

    argparse would take them for options, and say that the option before has no value. No option of ours is a number.
    """
    words: list[str] = []
    for word in argv:
        if re.match(r"-\.?\d", word) and words and words[-1].startswith("--") and "=" not in words[-1]:
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


class _Parser(argparse.ArgumentParser):
    """An argparse parser that raises instead of printing, and does not guess abbreviated options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False, exit_on_error=False)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see `{self.prog} --help`.")


@contextlib.contextmanager
def _notes_on_stderr() -> Iterator[None]:
    """Prints notes of what was chosen on the way (a library, a fresh head) on stderr, one line each."""
    logger, notes = logging.getLogger("snugfit"), logging.Handler()
    notes.emit = lambda record: say(notes.format(record))  # type: ignore[method-assign]
    notes.setFormatter(logging.Formatter("snugfit: %(message)s"))
    level = logger.level
    logger.addHandler(notes)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(notes)
        logger.setLevel(level)


def _showing_ours_plainly(otherwise: Any) -> Any:
    """Returns a `warnings.showwarning` that prints a `SnugfitWarning` as one line without file and line number."""

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if issubclass(category, SnugfitWarning):
            say(f"snugfit: {message}")
        else:
            otherwise(message, category, *place)

    return show
