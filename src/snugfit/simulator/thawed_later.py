"""Layers that a script lets train after the steps that were looked at, as transfer learning does. Pure text."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from snugfit.simulator.behind_training import parts_of_training
from snugfit.simulator.script_text import called

_THAW = ("unfreeze", "thaw")
"""In names of functions that let weights train."""


def thawed_later(text: str, lines: Sequence[int]) -> list[int]:
    """Returns the lines in the loop that trains, or behind it, that let weights train.

    `lines`: those that were running in the middle of the training, that of the outermost function first.
    """
    loop, behind = parts_of_training(ast.parse(text), lines)
    parts = behind if loop is None else [loop, *behind]
    nodes = (node for part in parts for node in ast.walk(part))
    return sorted({node.lineno for node in nodes if isinstance(node, ast.Assign | ast.Call) and _thaws(node)})


def _thaws(node: ast.Assign | ast.Call) -> bool:
    """Whether an assignment or call sets `requires_grad` to anything but False."""
    if isinstance(node, ast.Assign):
        sets = any(isinstance(one, ast.Attribute) and one.attr == "requires_grad" for one in node.targets)
        return sets and not _is_false(node.value)
    name = called(node)
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    return (name == "requires_grad_" and not any(map(_is_false, given))) or any(word in name for word in _THAW)


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False
