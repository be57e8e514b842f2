"""A request in a copy of its worker: what it changes is gone with it, and what the worker has loaded is there.

Scripts import, register and replace what they like, so that each run of one needs a process of its own; a copy of a worker
takes some milliseconds where a new worker takes seconds to import torch. The worker itself runs nothing of the request: it
has no threads that a copy would be without.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from snugfit.errors import SnugfitError
from snugfit.workers.failures import NOT_TRIED, cannot_run, line_of

T = TypeVar("T")
FORKS = sys.platform == "linux"
"""Whether processes are copied here; elsewhere libraries of the system may not stand it."""
_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of `prctl`: the asking process ends the worker, and the copy has to end with it."""


def forked(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Runs a function in a copy of this process, and returns what it returned, or raises what it raised."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(writing, function, args, kwargs)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        answer = answers.read()
    _, status = os.waitpid(child, 0)
    if not answer:
        _end_like(status)
    done, value = pickle.loads(answer)
    if not done:
        raise value
    return value  # type: ignore[no-any-return]


def _answer(writing: int, function: Callable[..., Any], args: Any, kwargs: Any) -> NoReturn:
    import torch

    from snugfit.private_torch import late_compiler  # has torch, which a command that asks a worker does without

    # Its pool of threads is made anew in a copy by the first that asks, and a second one at that moment finds none
    # ("Invalid thread pool!", of threads that convert weights, as those of transformers do).
    torch.set_num_threads(torch.get_num_threads())

    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    try:
        answer: tuple[bool, Any] = True, function(*args, **kwargs)
    except (SnugfitError, late_compiler.CompilerNeeded) as error:
        answer = False, error
    except BaseException as error:
        answer = False, cannot_run(error, line_of(error), NOT_TRIED)
    with os.fdopen(writing, "wb") as answers:
        pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end_like(status: int) -> NoReturn:
    """Ends this worker as its copy has ended, for whoever asked to see how."""
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))
