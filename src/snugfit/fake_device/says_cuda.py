"""Code that compares a device's type with "cuda" finds it so on the fake accelerator.

A device object cannot lie about its type, which is `sim`. So where a file of code reads `.type` and names "cuda", it is
compiled anew with each `value.type` as a call that answers `cuda` for the fake device. Modules of torch itself and of
snugfit know better, and stay as they are.
"""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from snugfit.device_kinds import CUDA
from snugfit.fake_device.personality import DEVICE_TYPE

_NAME = "__snugfit_type_of__"
_LEFT = ("torch", "snugfit", "numpy", "triton")
"""Packages whose code stays as it is."""


@contextmanager
def code_says_cuda() -> Iterator[None]:
    """Context in which files that are run or imported take the fake device for CUDA's."""
    finder = _Finder()
    setattr(builtins, _NAME, _type_of)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def other_text(texts: Mapping[str, str]) -> Iterator[None]:
    """Context in which modules are imported with other text than their files have; `texts`: file -> text."""
    finder = _OtherText(texts)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def rewritten(source: bytes | str, path: str) -> CodeType:
    """Returns a file's code with the types of devices as CUDA's."""
    tree: Any = ast.parse(source, path)
    if _asks(source if isinstance(source, bytes) else source.encode()):
        tree = ast.fix_missing_locations(_Types().visit(tree))
    return compile(tree, path, "exec", dont_inherit=True)


def _asks(source: bytes) -> bool:
    return b"cuda" in source and b".type" in source


def _type_of(value: Any) -> Any:
    found = value.type
    return CUDA if found == DEVICE_TYPE and isinstance(value, torch.device) else found


class _Types(ast.NodeTransformer):
    """Puts a call in place of each `value.type` that is read."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr != "type" or not isinstance(node.ctx, ast.Load):
            return node
        return ast.copy_location(ast.Call(ast.Name(_NAME, ast.Load()), [node.value], []), node)


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        """Compiles the file anew where it asks for types of devices; what is kept compiled does not know of that."""
        path = self.get_filename(fullname)
        source = self.get_data(path)
        return rewritten(source, path) if _asks(source) else super().get_code(fullname)


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
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if self._texts else None
        if spec is None or spec.origin is None or spec.origin not in self._texts:
            return None
        spec.loader = _Given(name, spec.origin, self._texts[spec.origin])
        return spec


setattr(builtins, _NAME, _type_of)  # where all code finds it, whatever names its module has
