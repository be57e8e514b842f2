"""A script run as the program's main module while it is watched, and what is said where it fails or does not train."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snugfit import workers
from snugfit.errors import CannotSimulateError, InputError, SnugfitError, in_words
from snugfit.installed import is_installed
from snugfit.simulator.harmless import NOT_DONE, NOT_SENT
from snugfit.simulator.launched import STARTED_BY_TORCHRUN, VARIABLES
from snugfit.simulator.script import EnoughSeen, Program, as_main, exit_code, main_module, print_error, run_parts
from snugfit.simulator.watched_script import STEPS, WatchedScript
from snugfit.workers.failures import line_of

_ELSEWHERE = re.compile(r"https://huggingface\.co|Hugging Face Hub|offline|no internet connection", re.IGNORECASE)
"""What libraries say where they cannot download."""
_WANTED_GPUS = re.compile(r"requested gpu: \[([\d, ]+)\]")
"""As Lightning says that there are fewer."""


def run_watched(
    watched: WatchedScript, program: Program, arguments: Sequence[str], changed: Mapping[str, str], recorder: Any
) -> None:
    """Runs a script until enough was seen; its own failure is printed, and an InputError.

    `changed`: file -> text that is run in its place.
    """
    watched.recorder = recorder
    path, code = program.path, 0
    failed: list[tuple[str, str]] = []

    def goes_on(name: str, error: BaseException) -> bool:
        if isinstance(error, EnoughSeen):
            frames = traceback.extract_tb(error.__traceback__)
            watched.ends.append([(frame.filename, frame.lineno) for frame in frames if frame.lineno])
            if watched.gave_up:
                watched.notes.append(f"what {name} and the cells behind it do was not looked at to the end.")
            return not watched.gave_up
        if not program.cells or not watched.ends or not isinstance(error, Exception):
            return False
        failed.append((name, f"{in_words(error)}{line_of(error)}"))
        return True

    try:
        with as_main(program, arguments), main_module(program) as names:
            run_parts(program, names, changed, goes_on)
    except EnoughSeen:
        pass
    except SystemExit as end:
        code = exit_code(end)
    except CannotSimulateError as error:
        if watched.steps < STEPS:
            raise
        watched.notes.append(
            f"{path} was not followed to its end: {error} What it does from there on, behind the steps that are estimated, "
            "is not part of the estimate."
        )
        return
    except SnugfitError:
        raise
    except Exception as error:
        if watched.steps >= STEPS:
            watched.notes.append(
                f"{path} failed behind the steps that are estimated: {in_words(error)}{line_of(error)}. What it does later "
                "is not part of the estimate, in which loaders end early and tensors have no values."
            )
            return
        print_error(error, program)
        if isinstance(error, KeyError) and error.args and error.args[0] in VARIABLES:
            raise InputError(f"{path} asks for the variable {error.args[0]}. {STARTED_BY_TORCHRUN}") from error
        seen = f"after {watched.steps} training steps" if watched.steps else "before its optimizer stepped"
        if changed or watched.observer.put_on:  # it works as it is
            raise InputError(f"with it the script fails {seen}: {in_words(error)}{line_of(error)}.") from error
        what, todo = _advice(error, program)
        raise InputError(f"{path} failed {seen}, with its traceback above: {what}{line_of(error)}. {todo}") from error
    if failed:
        first, *others = (name for name, _ in failed)
        count = f" and {len(others)} of the cells behind it" if others else ""
        watched.notes.append(
            f"{first}{count} failed behind a training that was ended early ({failed[0][1]}). What they do is not part of "
            "the estimate."
        )
    if not watched.steps and recorder.refused:
        raise CannotSimulateError(recorder.refused)
    if not watched.steps:
        ended = f"ended with exit status {code}" if code else "ended"
        todo = (
            "What it gives a shell is not run: of training that is started so (!python train.py), give that script."
            if program.cells
            else "Give the arguments with which it trains, behind its name, and options of snugfit before it; of a file "
            f"that only builds a model, name the function: {path}:FUNCTION."
        )
        raise InputError(
            f"{path} {ended} without a step of an optimizer of torch.optim, so there is no training step to look at. {todo}"
        )


def _advice(error: Exception, program: Program) -> tuple[str, str]:
    """Returns what to say of an error of a script, and what to do about it."""
    what = str(error)
    library = (getattr(error, "name", None) or "").partition(".")[0]
    loaded = sys.modules.get(library)
    if isinstance(error, ImportError) and is_installed(getattr(loaded, "__file__", None) or ""):
        version = getattr(loaded, "__version__", "")
        return what, f"It is written for another version of {library} than the one that is installed ({version})."
    if isinstance(error, ModuleNotFoundError):
        place = f"snugfit runs in the Python of {sys.prefix}"
        return what, f"{place}: install it there, or install snugfit where the script runs."
    if isinstance(error, ImportError) and program.module is None and "no known parent package" in what:
        return what, "It is part of a package: give it as for `python -m`, in place of its file: -m package.module."
    unreached = isinstance(error, ConnectionError) or type(error).__name__ == "URLError"
    if unreached or NOT_SENT in what or _ELSEWHERE.search(what):
        what = " ".join(what.split())
        todo = "What it downloads has to be there: begin its training once without snugfit, or fetch the files by hand."
        if "huggingface" in what:
            todo += ' Of a model of transformers the small files are enough: hf download NAME --include "*.json".'
        return what, todo
    if isinstance(error, PermissionError) and NOT_DONE in what:
        files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
        if any(file.parent == Path(workers.__file__).parent or file.name == "host_speeds.py" for file in files):
            return (
                what,
                "It asks snugfit for an estimate or a plan: make that beforehand, and train by the recipe that was found.",
            )
        return what, "Let it go on without that, for example where the error is caught."
    if (gpus := _WANTED_GPUS.search(what)) is not None:
        todo = f"Several GPUs are a process each: estimate it with --gpus {gpus[1].count(',') + 1}."
        return in_words(error), todo
    return in_words(error), (
        "If it fails without snugfit too, the error is its own; if it works, it asks the simulated device for something "
        "that it does not have."
    )
