"""Where a script does something of its own when memory runs out, which it never does in an estimate. Pure text."""

from __future__ import annotations

import ast

from snugfit.simulator.script_text import called


def memory_handlers(text: str) -> list[int]:
    """Returns the lines at which memory that runs out is caught, by the script or by a library for it."""
    return sorted({getattr(node, "lineno", 1) for node in ast.walk(ast.parse(text)) if _handles(node)})


def _handles(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        return node.type is not None and "OutOfMemoryError" in ast.unparse(node.type)
    if isinstance(node, ast.Compare):  # of what an error says
        return isinstance(node.left, ast.Constant) and "out of memory" in str(node.left.value).lower()
    if isinstance(node, ast.keyword):
        return node.arg == "auto_find_batch_size" and ast.unparse(node.value) == "True"
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    names = [called(one) if isinstance(one, ast.Call) else ast.unparse(one).rpartition(".")[2] for one in decorators]
    return "find_executable_batch_size" in names
