"""Says in words why something cannot be simulated: which operator, in which module, at which line, and what to do."""

from __future__ import annotations

import ast
import functools
import linecache
from pathlib import Path

from snugfit import private_torch
from snugfit.errors import CannotSimulateError
from snugfit.private_torch import fake_tensors

_PACKAGE = str(Path(__file__).resolve().parents[1])


def no_value(operator: str, module: str, assumption: str = "") -> CannotSimulateError:
    """Returns the error for an operator that needs values; `assumption` is the word that would answer it."""
    library = _library_of(private_torch.source_line((_PACKAGE,)))
    advice = (
        "Leave it out of the simulated step (printing or logging a loss, for example), write it without values "
        "(torch.where in place of a mask that selects)"
    )
    if library:
        advice = (
            f"It is in the code of {library}: if it belongs to the loss that the model computes by itself, leave the labels "
            "out of what the model gets and give snugfit the loss (loss=...), or set an option of the model that takes "
            "another way"
        )
    if assumption:
        advice = (
            f"Say what to take for it (--assume {assumption}; assume= in Python). Or: {advice[0].lower()}{advice[1:]}"
        )
    return CannotSimulateError(
        f"{operator}{_place(module)} needs the values of a tensor, and a simulated tensor has none. "
        f"{advice}, or measure the run on the device."
    )


def explain(error: Exception, operator: str, module: str) -> CannotSimulateError | None:
    """Returns the error for an operator without a fake version; None for a mistake that a real run would make too."""
    if isinstance(error, fake_tensors.DATA_DEPENDENT):
        return no_value(operator, module)
    if isinstance(error, fake_tensors.UNSUPPORTED):
        return CannotSimulateError(
            f"{operator}{_place(module)} has no version that works without values, so it cannot be simulated "
            f"({str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__}). "
            "Give the operator a fake version (torch.library.register_fake), or measure the run on the device."
        )
    return None


def place_outside() -> str:
    """Returns `file:line` of the innermost frame that is neither torch's nor ours; empty where there is none."""
    return private_torch.source_line((_PACKAGE,))


def asserted() -> bool | None:
    """Returns what the `assert` asks for in whose line a condition is read; None where there is none in that line."""
    path, _, number = place_outside().rpartition(":")
    found = _asserts("".join(linecache.getlines(path))) if path else ()
    return next((wanted for first, last, wanted in found if first <= int(number) <= last), None)


@functools.lru_cache(maxsize=64)
def _asserts(text: str) -> tuple[tuple[int, int, bool], ...]:
    """First and last line of the asserts in a file, and whether each asks for what is true."""
    try:
        found = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Assert)]
    except SyntaxError:
        return ()
    refused = [isinstance(one.test, ast.UnaryOp) and isinstance(one.test.op, ast.Not) for one in found]
    return tuple((one.lineno, one.end_lineno or one.lineno, not no) for one, no in zip(found, refused, strict=True))


def _library_of(line: str) -> str:
    """Returns the installed package that a line of code belongs to; empty where it is the user's own."""
    parts = Path(line).parts
    folder = next((i for i, part in enumerate(parts) if part in ("site-packages", "dist-packages")), len(parts))
    return "".join(parts[folder + 1 : folder + 2])


def _place(module: str) -> str:
    line = private_torch.source_line((_PACKAGE,))
    words = f" in module {module!r}" if module else ""
    return f"{words} at {line}" if line else words


def place_in_words(what: str) -> str:
    """Returns what was asked for, and the line of the code that did."""
    place = place_outside()
    return f"{what} at {place}" if place else what
