"""Code of Python's that runs within a backward pass: its errors on an accelerator written in Python, and its modes.

torch 2.11 to 2.15 loses such errors, or ends the process.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from snugfit.attributes import Change

_fetch_error, _let_go = ctypes.pythonapi.PyErr_Fetch, ctypes.pythonapi.Py_DecRef
_error = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()  # type, value, traceback
_places = tuple(map(ctypes.byref, _error))
_lost: list[BaseException] = []


def _object_at(place: ctypes.c_void_p) -> Any:
    return ctypes.cast(place, ctypes.py_object).value if place.value else ()


class BackendGuard(torch._C._acc.DeviceGuard):
    """Says what kind of device the accelerator is; with torch's own example an error in backward ends the process.

    While an error is on its way out of backward, torch leaves the stream of the node, and asks for the device by
    calling this method with the error still set, which Python functions do not survive. So the error is taken away
    first: that has to be the first thing that happens, with nothing made for it.
    """

    def type_(self) -> Any:
        """Returns the device's kind."""
        _fetch_error(*_places)
        if _error[0].value:
            kind, value = (_object_at(one) for one in _error[:2])
            # Errors raised in C come as a class and what it is to be made from.
            given = value if isinstance(value, tuple) else (value,)
            _lost.append(value if isinstance(value, BaseException) else kind(*given))
            for one in _error:
                if one.value:
                    _let_go(one)
        return torch._C._autograd.DeviceType.PrivateUse1


def keep_errors_of_backward() -> None:
    """Raises the errors that `BackendGuard` had to take away; torch has only a SystemError without them."""
    from torch.autograd import graph

    run = graph._engine_run_backward

    def run_and_raise(*args: Any, **kwargs: Any) -> Any:
        _lost.clear()
        try:
            return run(*args, **kwargs)
        except SystemError:
            if not _lost:
                raise
            error = _lost[0]
            _lost.clear()
            raise error from None

    graph._engine_run_backward = run_and_raise
    torch.autograd._engine_run_backward = run_and_raise  # type: ignore[attr-defined]


def backward_under(mode: TorchFunctionMode) -> list[Change]:
    """Returns the replacements by which hooks, checkpoints and functions of one's own run under a mode within backward.

    `Tensor.backward` is a torch function itself, so the mode that sees the call is off while it runs.
    """
    from torch.autograd import graph

    run = graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return run(*args, **kwargs)

    return [(owner, "_engine_run_backward", run_backward) for owner in (graph, torch.autograd)]
