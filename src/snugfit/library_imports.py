"""Imports of optional libraries, without what they say about themselves. Imports no torch.

torchao warns that its enums are registered the old way, bitsandbytes that a kernel of the hub is not there: nobody who
trains can do anything about either, and each comes once for every process. All imports of such libraries go through here.
Errors are logged and raised as ever; warnings after the import, and everything of ours, are not touched.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from snugfit.errors import InputError, SnugfitWarning

TALKATIVE = ("torch.utils._pytree", "torchao", "bitsandbytes", "peft")
"""Loggers that speak at import: of the libraries, and of torch where they register classes with it."""


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Context in which warnings of imported libraries are held back."""
    loggers = [logging.getLogger(name) for name in TALKATIVE]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", SnugfitWarning)
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def needed(what: str, module: str, *, install: str, library: str = "", instead: str = "") -> Any:
    """Imports an optional library; an `InputError` says why that failed, and how to install it.

    `what`: what needs it, with its verb, such as `quantize='nf4' needs`.
    `library`: the library's name; empty: what the module's name begins with.
    `instead`: what else may be done, behind the command.
    `module`: the module to import; one of ours may stand in front of the library.
    """
    try:
        with importing():
            return importlib.import_module(module)
    except (ImportError, OSError) as error:
        raise InputError(
            f"{what} the library {library or module.partition('.')[0]}, which does not import ({error}). "
            f"Run: pip install '{install}'{instead}"
        ) from error
