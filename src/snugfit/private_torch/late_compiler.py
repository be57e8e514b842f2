"""torch's compiler, loaded by who compiles: a second of imports that a step without `compile` can do without.

`torch._dynamo` is imported by the first optimizer, by fake tensors, by checkpoints, torchvision and transformers. What they
want of it is its settings, and to tell a compiler that is not there where to stop. Until something else is asked of it, a
module stands in its place that answers just that. Only the worker puts it there.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
import types
import weakref
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from snugfit.late_modules import StandIn, late_functions

_PACKAGE, _UTILS = "torch._dynamo", "torch._dynamo.utils"
_LIGHT = ("config", "_trace_wrapped_higher_order_op")
"""Modules of it that need no other: what fake tensors and the masks of transformers import."""
_CALLED_LATE = ("is_compile_supported", "warn_once")
"""Functions of `utils` that torchvision and torchao import, and call only when they compile."""
_MARKS = ("allow_in_graph", "assume_constant_result")
"""Decorators that only tell the compiler something, and return what they are given."""
_marked: list[tuple[str, Any]] = []
"""What the compiler has not been told yet: a decorator of `_MARKS`, and what it was called with."""
_left_out: list[Any] = []
"""Functions of torch that the compiler is to stay out of, which it has not been told yet."""
_kept_out: weakref.WeakSet[Any] = weakref.WeakSet()
"""The same of others; checkpoints make such functions all the time, and drop them."""

_not_now = False


class CompilerNeeded(BaseException):
    """What runs needs the compiler, which cannot be loaded in the middle of it: load it, and begin again.

    No `Exception`, so that nobody takes it for a failure of the model.
    """


def load_late() -> None:
    """Puts the stand-in in the compiler's place; does nothing where the compiler is loaded."""
    if _PACKAGE in sys.modules:
        return
    answers = {"graph_break": _nothing, "is_compiling": _never, "disable": _disable}
    marks = {name: functools.partial(_mark, name) for name in _MARKS}
    spec, utils = importlib.util.find_spec(_PACKAGE), ModuleSpec(_UTILS, None)
    assert spec is not None
    package: Any = StandIn(spec, load, **answers, **marks)
    package.__path__ = spec.submodule_search_locations
    for name in _LIGHT:
        importlib.import_module(f"{_PACKAGE}.{name}")
    package.utils = StandIn(utils, load, **late_functions(_UTILS, _CALLED_LATE, load))
    del package.__path__  # what imports another of its modules asks for it, and so loads the package
    torch._dynamo = package


def load() -> None:
    """Loads the compiler, if the stand-in is still there; `CompilerNeeded` where it cannot be loaded now."""
    if not isinstance(sys.modules.get(_PACKAGE), StandIn):
        return
    if _not_now:
        raise CompilerNeeded
    for name in (_PACKAGE, _UTILS):
        sys.modules.pop(name, None)
    del torch._dynamo
    with torch._C.DisableTorchFunction(), _disable_current_modes():  # a model may be being built on meta
        real: Any = importlib.import_module(_PACKAGE)
    for name in _LIGHT:
        setattr(real, name, sys.modules[f"{_PACKAGE}.{name}"])
    for function in _left_out:
        vars(function).pop("__dynamo_disable", None)  # torch asks again
    for mark, function in _marked:
        getattr(real, mark)(function)
    for function in _kept_out:
        function.tell_compiler()
    _left_out.clear()
    _marked.clear()
    _kept_out.clear()


@contextlib.contextmanager
def not_loaded_within() -> Iterator[None]:
    """Context in which the compiler is not loaded: it takes down all functions of torch, and some are replaced."""
    global _not_now
    _not_now = True
    try:
        yield
    finally:
        _not_now = False


def _nothing(*_: Any, **__: Any) -> None:
    """Nothing is compiled, so no graph is broken."""


def _never() -> bool:
    return False


def _disable(fn: Any = None, recursive: bool = True, *, wrapping: bool = True, **other: Any) -> Any:
    """Returns a function out of which the compiler is kept, once it is there."""
    if fn is None:
        return functools.partial(_disable, recursive=recursive, wrapping=wrapping, **other)
    if not wrapping:  # torch's own, which keep what they get, and ask again where they have nothing
        _left_out.append(fn)
        return fn
    disabled: Any = fn

    def tell_compiler() -> None:
        nonlocal disabled
        disabled = torch._dynamo.disable(fn, recursive, **other)  # type: ignore[no-untyped-call]

    if not isinstance(fn, types.FunctionType):
        tell_compiler()  # which loads it
        return disabled

    @functools.wraps(fn)
    def kept_out(*args: Any, **kwargs: Any) -> Any:
        return disabled(*args, **kwargs)

    vars(kept_out)["tell_compiler"] = tell_compiler
    _kept_out.add(kept_out)
    return kept_out


def _mark(mark: str, fn: Any) -> Any:
    _marked.append((mark, fn))
    return fn


@contextlib.contextmanager
def compiling_late() -> Iterator[None]:
    """Context in which functions that a library compiles while it is imported are compiled when they are first called."""
    compiler = torch.compile

    def late(fn: Any = None, **settings: Any) -> Any:
        if fn is None:
            return lambda given: late(given, **settings)
        if not isinstance(fn, types.FunctionType):
            return compiler(fn, **settings)
        made: Any = None

        @functools.wraps(fn)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            nonlocal made
            made = made or compiler(fn, **settings)
            return made(*args, **kwargs)

        return compiled

    torch.compile = late  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = compiler
