"""Optimizers that a script makes after the steps that were looked at, such as LBFGS behind Adam. Pure text."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from snugfit.simulator.script_text import called

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BRANCHES = (ast.If, ast.IfExp, ast.Try, ast.Match)


def later_optimizers(text: str, reached: Collection[int], classes: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yields line and class of optimizers that are made further down in a block of code that was running.

    What stands in a branch may never be meant, and is left to `perhaps_made`.

    `reached`: lines that were running when an optimizer was made.
    `classes`: names of optimizers.
    """
    tree = ast.parse(text)
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            calls = [(call.lineno, called(call)) for call in calls_in(scope)]
            last = max((line for line, _ in calls if line in reached), default=None)
            if last is not None:
                yield from ((line, name) for line, name in calls if line > last and name in classes)


def makes_optimizer(text: str, classes: Collection[str]) -> bool:
    """Whether a script makes an optimizer of one of these classes, anywhere."""
    return any(isinstance(one, ast.Call) and called(one) in classes for one in ast.walk(ast.parse(text)))


def is_apart(part: ast.AST) -> bool:
    """Returns whether what stands in a part of the code may never be run: that of a branch, or of another scope."""
    return isinstance(part, _SCOPES + _BRANCHES)


def calls_in(scope: ast.AST) -> Iterator[ast.Call]:
    """Yields the calls in a scope itself, outside of branches."""
    for part in ast.iter_child_nodes(scope):
        if isinstance(part, ast.Call):
            yield part
        if not is_apart(part):
            yield from calls_in(part)
