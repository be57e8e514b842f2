"""`%load_ext snugfit`: the cell magics `%%estimate` and `%%plan`, for a cell that trains.

A cell is estimated as `snugfit estimate SCRIPT.py` estimates a file, and planned as `snugfit plan SCRIPT.py` does; the line
takes that command's options:

    %%estimate --device rtx-4090
    import torch
    ...

Where it asks for names of the notebook, the cells that were run so far are run before it, simulated as well. Nothing of the
cell is left in the notebook. The estimate, or the plan with its lines to paste, is the cell's value.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.cli import parse, spoken_to_a_person
from snugfit.cli.output import writing
from snugfit.errors import SnugfitError

if TYPE_CHECKING:
    from snugfit.planner.script_plan_result import ScriptPlan
    from snugfit.simulator.prediction import Estimate


def load_ipython_extension(shell: Any) -> None:
    """Gives a notebook the magics; IPython calls it."""
    for command in ("estimate", "plan"):
        answer = functools.partial(answer_cell, command, shell.user_ns)
        shell.register_magic_function(answer, magic_kind="cell", magic_name=command)


def answer_cell(command: str, names: Mapping[str, Any], line: str, cell: str) -> Estimate | ScriptPlan | None:
    """Estimates or plans a cell; what is wrong with it is one message, and no answer.

    `command`: `estimate` or `plan`.
    `names`: what the notebook knows, `In` among it: the cells that were run.
    """
    with spoken_to_a_person(), contextlib.ExitStack() as around:
        try:
            before = [text for text in names["In"][:-1] if text.strip()] if _asked_of(cell) & names.keys() else []
            # In the notebook's folder while it runs: there its imports and files are found, and its lines have short names.
            script = next(path for path in map(Path, _names(".ipynb" if before else ".py")) if not path.exists())
            with writing(Path.cwd()), script.open("x", encoding="utf-8") as file:  # never another notebook's
                around.callback(script.unlink, missing_ok=True)
                file.write(_notebook([*before, cell]) if before else cell)
            args = parse([command, *shlex.split(line), str(script)])
            from snugfit.cli.estimate import estimated
            from snugfit.cli.plan import planned_script

            return planned_script(args) if command == "plan" else estimated(args, args.device)
        except SnugfitError as error:
            print(f"snugfit: {error}", file=sys.stderr)
            return None


def _asked_of(cell: str) -> set[str]:
    """Names that a cell reads and does not set; none of one that is no Python, which is told later."""
    try:
        found = list(ast.walk(ast.parse(cell)))
    except (SyntaxError, ValueError):
        return set()
    names = [one for one in found if isinstance(one, ast.Name)]
    stored = {one.id for one in names if not isinstance(one.ctx, ast.Load)}
    made = {one.name for one in found if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    imported = {one.asname or one.name.partition(".")[0] for one in found if isinstance(one, ast.alias)}
    return {one.id for one in names} - stored - made - imported - {one.arg for one in found if isinstance(one, ast.arg)}


def _notebook(cells: list[str]) -> str:
    """The text of a notebook; each cell but the last may fail, as it may have done before."""
    failed = [{"output_type": "error", "ename": "Exception"}]
    rows = [{"cell_type": "code", "source": text, "outputs": failed} for text in cells]
    rows[-1]["outputs"] = []
    return json.dumps({"cells": rows})


def _names(suffix: str) -> Iterator[str]:
    """Names that the file of a cell may have, in estimates as well."""
    yield f"cell{suffix}"
    yield from (f"cell_{number}{suffix}" for number in itertools.count(2))
