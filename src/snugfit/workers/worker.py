"""A simulation worker: `python -m snugfit.workers.worker` answers requests on its standard input until it is closed.

It is started as a module of ours, never by multiprocessing, so the user's script is not run again and notebooks, lambdas and
closures work. It alone registers the fake accelerator; the process that asks stays as it was. What requests print goes to
standard error.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import pickle
import signal
import sys
from typing import Any

from snugfit.errors import SnugfitError, in_words
from snugfit.late_modules import load_libraries_late
from snugfit.library_imports import importing
from snugfit.uncollected import uncollected
from snugfit.workers import torch_settings
from snugfit.workers.failures import NOT_TRIED, Again, cannot_run, line_of


def main() -> None:
    """Answers requests until the process that asks closes standard input, or is gone."""
    try:
        _serve()
    except (EOFError, pickle.UnpicklingError):
        return  # closed
    except BrokenPipeError:  # killed while it waited: nobody is left to be told, and what is not sent cannot be
        os._exit(1)


def _serve() -> None:
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    begin = pickle.load(requests)
    sys.path[:] = begin["path"]
    if begin["report"] is not None:  # where a crash says which line was running
        faulthandler.enable(begin["report"], all_threads=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the asking process's, which ends this one

    gc.disable()  # imports make many objects and drop none; looking through them again and again takes a second
    import torch

    from snugfit.private_torch import late_compiler

    late_compiler.load_late()
    load_libraries_late()
    from snugfit.recorder import registration
    from snugfit.workers import skeleton

    registration.register()
    torch.set_num_threads(1)
    gc.freeze()  # nothing of it is garbage, and looking through it would take a third of a second
    gc.enable()
    imported = len(sys.modules)
    pickle.dump("ready", answers)
    answers.flush()
    while True:
        path, folder, settings, request = pickle.load(requests)
        # As bytes in a message: what cannot be read over there leaves the stream at the beginning of the next one.
        with torch_settings.taken_over(settings):
            answer = _answer(path, folder, request, skeleton.loads)
        pickle.dump(answer, answers)
        answers.flush()
        gc.collect()
        if len(sys.modules) > imported:  # libraries that a request brought stay, and need not be looked through again
            gc.freeze()
            imported = len(sys.modules)


def _answer(path: list[str], folder: str | None, request: bytes, loads: Any) -> bytes:
    from snugfit.private_torch import late_compiler

    if folder is not None:
        with contextlib.suppress(OSError):
            os.chdir(folder)
    if path != sys.path:  # a script or notebook may have added to it since
        sys.path[:] = path
        importlib.invalidate_caches()
    try:
        try:
            with importing():  # what was sent brings its libraries along
                function, args, kwargs = loads(request)
        except ImportError as error:
            return pickle.dumps(("unknown module", (error.name, str(error))))
        except Exception as error:
            return pickle.dumps(("unread", in_words(error)))
        imported, compiles = set(sys.modules), False
        try:
            try:
                result = function(*args, **kwargs)
            except late_compiler.CompilerNeeded:
                compiles = True
            if compiles:  # not in the handler, or each error of the second try would name the first one
                del function, args, kwargs  # changed in place by now
                _forget_halves(imported)
                late_compiler.load()
                function, args, kwargs = loads(request)
                result = function(*args, **kwargs)
        except Again as failed:
            del function, args, kwargs
            raise failed.judged(lambda: _really(loads(request))) from failed
        with uncollected():  # a recording travels as some hundred thousand tuples, which hold on to no cycles
            return pickle.dumps(("done", result), protocol=pickle.HIGHEST_PROTOCOL)
    except SnugfitError as error:
        return pickle.dumps(("error", error))
    except (Exception, SystemExit) as error:
        return pickle.dumps(("error", cannot_run(error, line_of(error), NOT_TRIED)))


def _forget_halves(before: set[str]) -> None:
    """Drops what is left of packages whose import was broken off: Python takes out the package, and leaves its parts."""
    for name in sorted(sys.modules.keys() - before):
        parent = name.rpartition(".")[0]
        if parent and parent not in sys.modules:
            del sys.modules[name]


def _really(request: Any) -> Any:
    function, args, kwargs = request
    return function(*args, **kwargs, really=True)


if __name__ == "__main__":
    main()
