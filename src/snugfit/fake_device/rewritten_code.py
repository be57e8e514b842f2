"""Files of code that are run or imported with some expressions in another way; lines and names stay as they are."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

_LEFT = ("torch", "snugfit", "numpy", "triton")
"""Packages whose code stays as it is."""


class Rewriter(Protocol):
    """Changes files of code."""

    def asks(self, source: bytes, path: str) -> bool:
        """Whether it has something to change in a file."""

    def visit(self, tree: ast.AST) -> ast.AST:
        """Returns the code of a file, changed."""


_rewriters: list[Rewriter] = []


@contextmanager
def rewriting(rewriter: Rewriter) -> Iterator[None]:
    """Context in which files that are run or imported are changed by one more."""
    _rewriters.append(rewriter)
    try:
        with _found_by(_Finder()):
            yield
    finally:
        _rewriters.remove(rewriter)


def other_text(texts: Mapping[str, str]) -> AbstractContextManager[None]:
    """Context in which modules are imported with other text than their files have, or without a file; file -> text."""
    return _found_by(_OtherText(texts))


@contextmanager
def _found_by(finder: Any) -> Iterator[None]:
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def rewritten(source: bytes | str, path: str, flags: int = 0) -> CodeType:
    """Returns a file's code as those change it that are to; `flags`: of `compile`."""
    tree: Any = ast.parse(source, path)
    for rewriter in _asking(source if isinstance(source, bytes) else source.encode(), path):
        tree = ast.fix_missing_locations(rewriter.visit(tree))
    code: CodeType = compile(tree, path, "exec", flags, dont_inherit=True)
    return code


def _asking(source: bytes, path: str) -> list[Rewriter]:
    return [one for one in _rewriters if one.asks(source, path)]


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        """Compiles the file anew where something is to be changed; what is kept compiled does not know of that."""
        path = self.get_filename(fullname)
        source = self.get_data(path)
        return rewritten(source, path) if _asking(source, path) else super().get_code(fullname)


class _Finder:
    """Finds modules as Python does, and has files of code read by our loader."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if name.partition(".")[0] in _LEFT:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, str(Path(spec.loader.path)))
        return spec


class _Given(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        """Compiles the text that was given."""
        return rewritten(self._text, self.path)


class _OtherText:
    """Finds modules as Python does, and has some of them made from other text."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if not self._texts:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        tail = f"{name.rpartition('.')[2]}.py"
        places = [os.path.join(folder, tail) for folder in path or sys.path] if spec is None else [spec.origin or ""]  # noqa: PTH118
        file = next((one for one in places if one in self._texts), None)  # where there is no file, what one is to be
        if file is None:
            return None
        given = importlib.util.spec_from_file_location(name, file, loader=_Given(name, file, self._texts[file]))
        if spec is not None and given is not None:
            given.submodule_search_locations = spec.submodule_search_locations
        return given
