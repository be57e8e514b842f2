"""How a request that failed in a worker is told to the person who asked."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snugfit.errors import InputError, SnugfitError, in_words

NOT_TRIED = "Whether a real run fails as well was not tried"


class Again(Exception):
    """A request failed, and what it did is to be tried for real; its function then takes `really=True`."""

    def judged(self, really: Callable[[], Any]) -> SnugfitError:
        """Returns the error for a person; `really` asks once more, from the beginning, and returns what came of it."""
        raise NotImplementedError


def cannot_run(error: BaseException, where: str, real: str) -> InputError:
    """Returns the error for a person: what was said, and what a real run does."""
    fit = "Check that model, batch and loss fit each other."
    return InputError(f"the step cannot run{where}: {in_words(error)}. {real}. {fit}")


def line_of(error: BaseException) -> str:
    """Returns ` at FILE:LINE`, the innermost that is neither torch's nor ours; empty where there is none."""
    ours, torch_folder = str(Path(__file__).resolve().parents[1]), f"{os.sep}torch{os.sep}"
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    theirs = [at for at in frames if not at[0].startswith((ours, "<")) and torch_folder not in at[0]]
    return f" at {theirs[-1][0]}:{theirs[-1][1]}" if theirs else ""
