"""What of torch is private is used through `private_torch/` alone, and each name there has a test in this folder."""

import ast
import re
from pathlib import Path

from snugfit import private_torch

PRIVATE = Path(private_torch.__file__).parent
SOURCE = PRIVATE.parent


def _is_private(name):
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


DOCUMENTED = re.compile(r"^torch\.(_foreach_\w+|ops\.aten\._\w+(\.\w+)?|_check\w*)$")
"""Names with an underscore that torch documents, or that are names of operators."""


def _dotted(node):
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _of_torch(path):
    """All that a file says of torch with dots."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("torch."))
        elif isinstance(node, ast.Attribute) and _dotted(node).startswith("torch."):
            yield _dotted(node)


def test_nothing_else_reaches_into_torch():
    private = {
        f"{path.relative_to(SOURCE)}: {name}"
        for path in SOURCE.rglob("*.py")
        if path.parent != PRIVATE
        for name in _of_torch(path)
        if _is_private(name) and not DOCUMENTED.match(name)
    }
    assert private == set(), "use these through private_torch, with a test here"


def test_each_name_has_a_test():
    names = set()
    for node in (node for path in PRIVATE.glob("*.py") for node in ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {
                name.id
                for target in node.targets
                for name in (target.elts if isinstance(target, ast.Tuple) else [target])
                if isinstance(name, ast.Name)
            }
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
    public = {name for name in names if not name.startswith("_")}
    files = Path(__file__).parent.glob("test_*.py")
    here = {word for file in files for word in re.findall(r"\b\w+\b", file.read_text(encoding="utf-8"))}
    assert sorted(public - here) == []
