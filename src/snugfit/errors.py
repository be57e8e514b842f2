"""Errors and warnings for the person who typed: what was given, what is allowed, what to do."""

from __future__ import annotations

import contextlib
import difflib
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any


class SnugfitError(ValueError):
    """Base of every error that is meant for a person; never an internal invariant.

    `exit_code` is what the command line ends with when this error reaches it.
    """

    exit_code = 2

    def __reduce__(self) -> Any:
        """Pickles the message and what is plain of the rest, whatever arguments the class takes."""
        plain = {name: value for name, value in vars(self).items() if isinstance(value, str | int | float | tuple)}
        return _travelled, (type(self), str(self), plain)


def _travelled(kind: type[SnugfitError], message: str, attributes: dict[str, Any]) -> SnugfitError:
    error = kind.__new__(kind, message)
    vars(error).update(attributes)
    return error


class InputError(SnugfitError):
    """Something that was given cannot be used; `fields` are the recipe's fields that it is about, where it is about such."""

    fields: tuple[str, ...] = ()


class SequenceTooLongError(InputError):
    """A sequence has more tokens than the model takes."""


@contextlib.contextmanager
def about(*fields: str) -> Iterator[None]:
    """Context in which errors are marked as being about these fields of the recipe."""
    try:
        yield
    except InputError as error:
        error.fields = error.fields or fields
        raise


_ON_COMMAND_LINE: ContextVar[bool] = ContextVar("on_command_line", default=False)


@contextlib.contextmanager
def on_command_line() -> Iterator[None]:
    """Context in which errors name arguments as options of the command line."""
    token = _ON_COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _ON_COMMAND_LINE.reset(token)


def is_on_command_line() -> bool:
    """Returns whether errors name arguments so here."""
    return _ON_COMMAND_LINE.get()


def option(*given: str) -> str:
    """Returns arguments as they were given: `--run-dir DIR --resume`, or in Python `run_dir and resume`."""
    if _ON_COMMAND_LINE.get():
        return " ".join(f"--{one.replace('_', '-')}" for one in given)
    return " and ".join(one.partition(" ")[0] for one in given)


def argument(name: str, value: object) -> str:
    """Returns an argument with its value, as it is typed: `--allow rounding`, or in Python `allow='rounding'`."""
    return f"{option(name)} {value}" if _ON_COMMAND_LINE.get() else f"{name}={value!r}"


class RecipeError(InputError):
    """A recipe or a workload has mistakes, or the two contradict each other; lists all of them."""

    def __init__(self, problems: Iterable[str], *, subject: str = "recipe") -> None:
        """Collects the problems into one message.

        Args:
            problems: One sentence for each mistake; at least one.
            subject: What has the mistakes, for the headline.
        """
        self.problems = tuple(problems)
        if len(self.problems) == 1:
            message = f"{subject}: {self.problems[0]}"
        else:
            lines = "\n".join(f"  - {problem}" for problem in self.problems)
            message = f"{subject}: {len(self.problems)} problems\n{lines}"
        super().__init__(message)


class DoesNotFitError(SnugfitError):
    """The work does not fit the memory that was given."""

    exit_code = 3


class TrainingError(SnugfitError):
    """Training stopped: names the cause, what is saved, and how to go on."""

    exit_code = 4
    left_to_others = False
    """Whether the process that has started this one reports the error, so that this one must not."""


class NotFiniteError(TrainingError):
    """The loss or a gradient of a step is not finite: says which, and what may help."""


class OutOfMemoryError(DoesNotFitError, TrainingError):
    """Training needs more memory than there is, whatever was tried; `undone` says what became of the step."""

    def __init__(self, message: str, *, undone: bool = True, cause: str | None = None) -> None:
        """Takes the message.

        Args:
            message: What was tried, and how to go on.
            undone: Whether the weights are those of the last whole step; False: an update ended half way.
            cause: What the allocator said, for a message that says the rest in other words; None: the whole message.
        """
        super().__init__(message)
        self.undone = undone
        self.cause = message if cause is None else cause


class TrainingStopped(KeyboardInterrupt):
    """A signal ended a run early: says what is saved and how to go on. `signal` is its number."""

    def __init__(self, message: str, signal: int) -> None:
        """Takes the message.

        Args:
            message: What is saved, and how to go on.
            signal: Number of the signal.
        """
        super().__init__(message)
        self.signal = signal

    def __reduce__(self) -> Any:
        """Pickles it, with arguments that the class takes."""
        return type(self), (str(self), self.signal)


class CannotSimulateError(SnugfitError):
    """The model or step cannot run on fake tensors: names operator, module, line and what to do."""

    exit_code = 5


class SnugfitWarning(UserWarning):
    """Something given has no effect or deserves a second look; training goes on."""


class UncalledBlocksWarning(SnugfitWarning):
    """A technique acts on blocks when they are called, and the model calls none of them."""


def warn(text: str, kind: type[SnugfitWarning] = SnugfitWarning) -> None:
    """Warns the person who called snugfit, naming the nearest line of code that is not ours."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "snugfit",
        "contextlib",
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, kind, stacklevel=level)


def note(text: str) -> None:
    """Logs what was chosen on the way, such as a library or a fresh head."""
    logging.getLogger("snugfit").info("%s", text)


def in_words(error: BaseException) -> str:
    """Returns the class and the message of anybody's error in one line."""
    return f"{type(error).__name__}: {message_of(error)}".rstrip(": ")


def message_of(error: BaseException) -> str:
    """Returns an error's message in one line, cut where it is long."""
    return " ".join(str(error).split())[:400].rstrip(".")


def listed(names: Iterable[str], most: int = 4) -> str:
    """Returns the first of some names, and how many more there are."""
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: the nearest match, then what is allowed."""
    names = list(allowed)
    hint = nearest(given, names)
    return f"{hint}{'Allowed' if hint else 'allowed'}: {', '.join(names)}." if names else ""


def nearest(given: str, allowed: Iterable[str]) -> str:
    """Returns `did you mean 'x'? ` with a space at the end, or nothing; for lists too long to print."""
    near = difflib.get_close_matches(given, list(allowed), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}? " if near else ""
