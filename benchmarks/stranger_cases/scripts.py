"""Scripts that train when they are imported: their imports, functions and classes without the rest."""

from __future__ import annotations

import ast
import contextlib
import sys
import types
from pathlib import Path

_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def definitions(file: str) -> types.ModuleType:
    """Returns what a script defines; the module is in no table of modules, as that of a script that runs.

    Args:
        file: The script, in a folder from which this process imports.
    """
    path = next(found for folder in sys.path if (found := Path(folder) / file).is_file())
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, _DEFINITIONS)]
    module = types.ModuleType(f"script_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look it up
    for node in tree.body:
        with contextlib.suppress(ModuleNotFoundError):  # what only the rest of the script needs
            exec(compile(ast.Module([node], []), str(path), "exec"), module.__dict__)
    del sys.modules[module.__name__]
    return module
