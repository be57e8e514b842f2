"""Models from a user's own file: `path/file.py:function`.

The file is loaded as a module of its own, with its folder importable, as if it were run as a script. Whatever goes
wrong in it is reported with the line of that file.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from snugfit.errors import InputError, did_you_mean, in_words


def load_function(spec: str) -> Callable[..., Any]:
    """Returns the function that `path/file.py:function` names; `InputError` where it cannot be loaded."""
    path_text, _, name = spec.rpartition(":")
    if not path_text or not name.isidentifier():
        raise InputError(
            f"model {spec!r} names no function. Write path/file.py:function; a training script as it is goes to "
            "snugfit estimate, plan or profile."
        )
    path = Path(path_text).expanduser()
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"model file {path_text!r} {what}. Write path/file.py:function with an existing file.")
    module = _load(path)
    function: Callable[..., Any] | None = getattr(module, name, None)
    if isinstance(function, torch.nn.Module):
        raise InputError(
            f"model {spec!r} is a {type(function).__name__} that is built already; give a function that builds it, so that "
            f"it can be built more than once: `def build(): return {name}` with the lines that make it inside."
        )
    if not callable(function):
        own = [key for key, value in vars(module).items() if callable(value) and _is_own(value, module, key)]
        hint = did_you_mean(name, own) or "it defines none. Write path/file.py:function."
        raise InputError(f"model file {path_text!r} has no function {name!r}; {hint}")
    return function


def _is_own(value: object, module: ModuleType, name: str) -> bool:
    return getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")


def _load(path: Path) -> ModuleType:
    resolved = path.resolve()
    # Named by its path, so that two files of one name do not replace each other; kept in sys.modules for pickling.
    name = f"{path.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:8]}"
    # With a loader, because a link may lead to a file whose name says nothing.
    loader = importlib.machinery.SourceFileLoader(name, str(resolved))
    module_spec = importlib.util.spec_from_file_location(name, resolved, loader=loader)
    assert module_spec is not None
    module = importlib.util.module_from_spec(module_spec)
    folder = str(resolved.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"model file {str(path)!r} does not load: {describe(error, resolved)}") from error
    return module


def call(
    spec: str, function: Callable[..., Any], model_args: Mapping[str, Any], num_classes: int | None
) -> torch.nn.Module:
    """Calls a user's function, and raises `InputError` unless it gives a module.

    `num_classes`: passed on as `num_classes` where the function takes it and `model_args` does not say it.
    """
    arguments = dict(model_args)
    try:
        signature = inspect.signature(function)
    except ValueError:  # some callables of C extensions have no signature
        signature = None
    if signature is not None:
        kinds = {parameter.kind for parameter in signature.parameters.values()}
        takes = "num_classes" in signature.parameters or inspect.Parameter.VAR_KEYWORD in kinds
        if num_classes is not None and takes:
            arguments.setdefault("num_classes", num_classes)
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise InputError(
                f"model {spec!r} cannot be called with {_listed(arguments)}: {error}. Its arguments: {signature}."
            ) from error
    try:
        model = function(**arguments)
    except (Exception, SystemExit) as error:
        code = getattr(inspect.unwrap(function), "__code__", None)
        where = Path(code.co_filename) if code is not None else None
        raise InputError(f"model {spec!r} failed: {describe(error, where)}") from error
    if not isinstance(model, torch.nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise InputError(f"model {spec!r} returned {what}, not a torch.nn.Module. Return the model from the function.")
    return model


def describe(error: BaseException, file: Path | None) -> str:
    """Returns an error in one line, with `line N: text` of a user's file in its traceback."""
    if file is None:
        return in_words(error)
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename) == file:
        return f"{type(error).__name__}: {error.msg} (line {error.lineno}: {(error.text or '').strip()})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    return in_words(error) + (f" (line {frames[-1].lineno}: {frames[-1].line})" if frames else "")


def _listed(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items()) or "no arguments"
