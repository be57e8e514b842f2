"""What a script computes behind its training, which an estimate of its first steps does not come to. Pure text."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterable, Iterator, Sequence

from snugfit.simulator.later_optimizers import calls_in, is_apart
from snugfit.simulator.script_text import called

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BLOCKS = ("body", "orelse", "finalbody", "handlers")
_RUN_MODELS = ("evaluat", "forward", "generat", "infer", "load_state", "no_grad", "predict", "test", "validat")
"""How names of methods and of what is imported begin that run a model or load one; others mostly save or log."""


def behind_training(text: str, lines: Sequence[int]) -> int | None:
    """Returns the line of the first statement behind the training that may run a model; None where there is none.

    What stands in a branch may never be meant, and is passed over.

    `lines`: those that were running in the middle of the training, that of the outermost function first.
    """
    tree = ast.parse(text)
    _, behind = parts_of_training(tree, lines)
    return _first_that_runs_a_model(tree, behind)


def behind_passes(text: str, lines: Sequence[int]) -> int | None:
    """Returns the line of the first statement behind a pass through the data that may run a model; None without one.

    A pass is a loop within the outermost one that trains. Lines as above.
    """
    tree = ast.parse(text)
    inside = [one for line in lines for one in _statements_around(tree, line)]
    loops = [number for number, (one, _) in enumerate(inside) if isinstance(one, _LOOPS)]
    if len(loops) < 2:
        return None
    within = inside[loops[0] + 1 : loops[-1] + 1]
    return _first_that_runs_a_model(tree, [statement for _, others in reversed(within) for statement in others])


def _first_that_runs_a_model(tree: ast.AST, statements: Iterable[ast.stmt]) -> int | None:
    imports = (one for one in ast.walk(tree) if isinstance(one, ast.Import | ast.ImportFrom))
    others = {name.asname or name.name for one in imports for name in one.names} | set(dir(builtins))
    return next((one.lineno for one in statements if _runs_a_model(one, others)), None)


def perhaps_made(text: str, lines: Sequence[int], classes: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yields line and class of optimizers that a branch behind the training makes; `lines`: as above."""
    _, behind = parts_of_training(ast.parse(text), lines)
    parts = (part for one in behind if is_apart(one) and not isinstance(one, _FUNCTIONS) for part in ast.walk(one))
    yield from ((one.lineno, called(one)) for one in parts if isinstance(one, ast.Call) and called(one) in classes)


def trained_in_turn(text: str, lines: Sequence[int], made: Collection[int]) -> int | None:
    """Returns the line of the loop that trains, where it makes an optimizer in each turn; else None.

    `lines`: as above. `made`: lines that were running when an optimizer was made.
    """
    loop, _ = parts_of_training(ast.parse(text), lines)
    if loop is None or not any(loop.lineno <= line <= (loop.end_lineno or loop.lineno) for line in made):
        return None
    return loop.lineno


def parts_of_training(tree: ast.AST, lines: Sequence[int]) -> tuple[ast.stmt | None, list[ast.stmt]]:
    """Returns the outermost loop that trains, None without one, and what stands behind it; `lines` as above."""
    behind: list[ast.stmt] = []
    for line in lines:
        inside = list(_statements_around(tree, line))
        loop = next((number for number, (one, _) in enumerate(inside) if isinstance(one, _LOOPS)), len(inside))
        # what stands behind in the loop itself was come to in its turns before
        behind = [statement for _, others in reversed(inside[: loop + 1]) for statement in others] + behind
        if loop < len(inside):
            return inside[loop][0], behind
    return None, behind


def _statements_around(tree: ast.AST, line: int) -> Iterator[tuple[ast.stmt, list[ast.stmt]]]:
    """The statements around a line within its function, the outermost first, and those behind each in its block."""
    around: list[tuple[ast.stmt, list[ast.stmt]]] = []
    inner: ast.AST | None = tree
    while inner is not None:
        outer, inner = inner, None
        for name in _BLOCKS:
            block = getattr(outer, name, [])
            for number, one in enumerate(block):
                if one.lineno <= line <= one.end_lineno:
                    inner = one
                    around.append((one, block[number + 1 :] if name != "handlers" else []))
        if isinstance(inner, _FUNCTIONS):
            around.clear()
    return iter(around)


def _runs_a_model(statement: ast.stmt, others: Collection[str]) -> bool:
    """Whether a statement calls what may be a model, or a function that runs one; `others`: names not of the script."""
    calls = () if is_apart(statement) else calls_in(statement)
    return any(
        called(call).startswith(_RUN_MODELS) or (isinstance(call.func, ast.Name) and call.func.id not in others)
        for call in calls
    )
