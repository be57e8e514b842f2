"""Code that compares a device's type with "cuda" finds it so on the fake accelerator.

A device object cannot lie about its type, which is `sim`. So where a file of code reads `.type` and names "cuda", it is
compiled anew with each `value.type` as a call that answers `cuda` for the fake device. Modules of torch itself and of
snugfit know better, and stay as they are.
"""

from __future__ import annotations

import ast
import builtins
from contextlib import AbstractContextManager
from typing import Any

import torch

from snugfit.device_kinds import CUDA
from snugfit.fake_device.personality import DEVICE_TYPE
from snugfit.fake_device.rewritten_code import rewriting

_NAME = "__snugfit_type_of__"


def code_says_cuda() -> AbstractContextManager[None]:
    """Context in which files that are run or imported take the fake device for CUDA's."""
    return rewriting(_Types())


def _type_of(value: Any) -> Any:
    found = value.type
    return CUDA if found == DEVICE_TYPE and isinstance(value, torch.device) else found


class _Types(ast.NodeTransformer):
    """Puts a call in place of each `value.type` that is read."""

    def asks(self, source: bytes, _: str) -> bool:
        return b"cuda" in source and b".type" in source

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr != "type" or not isinstance(node.ctx, ast.Load):
            return node
        return ast.copy_location(ast.Call(ast.Name(_NAME, ast.Load()), [node.value], []), node)


setattr(builtins, _NAME, _type_of)  # where all code finds it, whatever names its module has
