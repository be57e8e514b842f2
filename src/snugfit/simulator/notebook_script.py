"""Notebooks as scripts: their cells, and what they ask of IPython and of the place they were written for.

Timed code is run; words to a shell or a page are left out.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.abc
import importlib.machinery
import itertools
import json
import linecache
import os
import re
import shlex
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from snugfit.attributes import replaced
from snugfit.errors import InputError
from snugfit.library_imports import needed

SUFFIX = ".ipynb"
FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
"""How cells are compiled."""
_RUN = ("time", "timeit", "capture", "prun")
"""Magics whose line or cell is code of the notebook."""
_RUN_CELL = re.compile(rf"%%({'|'.join(_RUN)})\b(?:\s+--?\S+)*[ \t]*([^\n]*)")
_SETTINGS = re.compile(r"^(?:\s*-(?:[nrpl]\s*\S+|[a-zA-Z]+))*\s*")
"""Those of `%timeit` and its like, before the code."""
_HOSTS = ("google", "google.colab", "kaggle_secrets")
"""Modules that are only there where Colab or Kaggle runs a notebook."""
_SHOWN = "__snugfit_shown__"


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """A cell of code."""

    text: str
    """Its code, in Python's own words."""
    error: str = ""
    """The class of the error that it ended with when the notebook was saved; empty: none."""

    def fails_with(self, error: BaseException) -> bool:
        """Whether an error is that one, behind which a person went on."""
        return self.error in [one.__name__ for one in type(error).__mro__]


def cells_of(path: Path) -> tuple[Cell, ...]:
    """Returns the cells of code of a notebook; `InputError` for what is none."""
    todo = "Give a notebook as Jupyter saves it, or a Python file."
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        cells = whole["cells"]
        language = whole.get("metadata", {}).get("kernelspec", {}).get("language", "python")
        found = [Cell("".join(cell["source"]) + "\n", _error_of(cell)) for cell in cells if cell["cell_type"] == "code"]
    except OSError as error:
        raise InputError(f"notebook {str(path)!r} cannot be read: {error.strerror or error}. {todo}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # an old one keeps its cells elsewhere
        raise InputError(
            f"{str(path)!r} is no notebook of format 4. {todo} (jupyter nbconvert --to notebook FILE renews an old one.)"
        ) from error
    if language != "python":
        raise InputError(f"notebook {str(path)!r} is written in {language}. {todo}")
    if not (found := [cell for cell in found if cell.text.strip()]):
        raise InputError(f"notebook {str(path)!r} has no code. {todo}")
    return tuple(_in_python(cell, name_of_cell(path, number)) for number, cell in enumerate(found, 1))


def _error_of(cell: Mapping[str, Any]) -> str:
    return next((str(one["ename"]) for one in cell.get("outputs", ()) if one["output_type"] == "error"), "")


def name_of_cell(path: Path, number: int) -> str:
    """Returns what estimates and errors call a cell; it has the number that Jupyter gives it where all are run in order."""
    return f"{path}[cell {number}]"


def _in_python(cell: Cell, name: str) -> Cell:
    """A cell with IPython's commands (`%time`, `!ls`) as calls of `get_ipython()`; one that never was code is empty."""
    text = cell.text
    if (magic := _RUN_CELL.match(text.lstrip())) is not None:
        kept = f"{magic[2]} = get_ipython().captured()" if magic[1] == "capture" and magic[2].isidentifier() else ""
        text = text.replace(magic[0], kept, 1)
    try:
        compile(text, name, "exec", FLAGS, dont_inherit=True)
        return dataclasses.replace(cell, text=text)
    except (SyntaxError, ValueError):
        needs = f"{name} has commands for IPython or is no Python; to read it needs"
        manager = needed(needs, "IPython.core.inputtransformer2", install="ipython").TransformerManager()
    dropped = text[: -len(text.lstrip())].count("\n")  # lines, by what follows
    text = "\n" * dropped + manager.transform_cell(text)
    try:
        compile(text, name, "exec", FLAGS, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        if cell.fails_with(error):
            return dataclasses.replace(cell, text="")
        what = getattr(error, "msg", None) or error
        raise InputError(
            f"{name}:{getattr(error, 'lineno', 1)} is no Python: {what}. Mend it; nothing was run."
        ) from error
    return dataclasses.replace(cell, text=text)


def tell_lines(parts: Mapping[str, bytes]) -> None:
    """Lets this process find the lines of cells, which are in no file of theirs."""
    for name, text in parts.items():
        linecache.cache[name] = (len(text), None, text.decode().splitlines(keepends=True), name)


class Shell:
    """Stands for IPython in a script, as `get_ipython()` gives it."""

    def __init__(self, run: Callable[[str], None], run_file: Callable[[str], None], written: dict[str, str]) -> None:
        """Leaves modules that are written in `written`; `run`, `run_file`: run code, or a file, in the main module."""
        self._run, self._run_file, self._written = run, run_file, written

    def run_line_magic(self, name: str, line: str, *_: Any, **__: Any) -> None:
        """`%name line`."""
        if name in _RUN and name != "capture":
            line = _SETTINGS.sub("", line) + ("" if name == "time" else ";")  # which alone shows a value
            self._run("\n" * (sys._getframe(1).f_lineno - 1) + line)  # so that it has the number it is seen by
        elif name == "run":
            words = list(itertools.dropwhile(lambda word: word.startswith("-"), shlex.split(line)))
            with replaced([(sys, "argv", words)]):
                self._run_file(words[0])
        elif name in ("env", "set_env"):
            variable, given, value = line.partition("=" if "=" in line else " ")
            if given:
                os.environ[variable.strip()] = value.strip()
        elif name == "cd" and Path(line).is_dir():
            os.chdir(line)

    def run_cell_magic(self, name: str, line: str, cell: str) -> None:
        """`%%name`, and the cell behind it."""
        if name in _RUN:
            self._run("\n" * sys._getframe(1).f_lineno + cell)
        elif name in ("file", "writefile"):
            *settings, path = shlex.split(line)
            with Path(path).open("a" if settings else "w", encoding="utf-8") as file:
                file.write(cell)
            self._written[str(Path(path).absolute())] = Path(path).read_text(encoding="utf-8")

    def captured(self) -> Any:
        """What a cell has printed, which `%%capture name` keeps."""
        return _Nothing()

    def getoutput(self, *_: Any, **__: Any) -> list[str]:
        """`lines = !command`."""
        return []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: None  # `!command`, older spellings of magics, settings


class ShownValues(ast.NodeTransformer):
    """Keeps what the last line of a cell shows, as Jupyter does in `Out`: a tensor that is shown stays."""

    def asks(self, source: bytes, path: str) -> bool:
        """Whether a file is a cell, and shows what its last line is."""
        _, of_cell, number = path.rpartition(f"{SUFFIX}[cell ")
        self._number = int(number.rstrip("]")) if of_cell else 0
        return bool(of_cell) and not source.rstrip().endswith(b";")

    def visit_Module(self, node: ast.Module) -> ast.AST:
        """Hands the value of the last line to `shown`."""
        last = node.body[-1] if node.body else None
        if isinstance(last, ast.Expr):
            values = [last.value, ast.Constant(self._number)]
            last.value = ast.copy_location(ast.Call(ast.Name(_SHOWN, ast.Load()), values, []), last.value)
        return node


def add_names(names: dict[str, Any], cells: Sequence[Cell]) -> None:
    """Adds to a notebook's main module what Jupyter sets there."""

    def show(value: Any, number: int) -> None:
        if value is not None:
            names["Out"][number] = names["_"] = names[f"_{number}"] = value

    texts = ["", *(cell.text for cell in cells)]
    names.update({"display": lambda *_, **__: None, "In": texts, "Out": {}, "_": "", _SHOWN: show})


@contextmanager
def elsewhere() -> Iterator[None]:
    """Context in which modules of Colab and Kaggle that are not there do nothing: drives to mount, secrets, uploads."""
    finder = _Finder()
    sys.meta_path.append(finder)  # behind those that find what is there
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(importlib.abc.Loader):
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if name not in _HOSTS and not name.startswith("google.colab."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Host(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


class _Host(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()


class _Nothing:
    """Is called, has no parts, and gives secrets that are empty."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __call__(self, *_: Any, **__: Any) -> _Nothing:
        return self

    def get(self, *_: Any) -> str:
        return ""

    get_secret = get

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self
