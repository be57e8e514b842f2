"""`%load_ext snugfit`: the cell magic `%%estimate`, for a cell that is a whole training script.

A cell is estimated as `snugfit estimate SCRIPT.py` estimates a file; the line takes that command's options:

    %%estimate --device rtx-4090
    import torch
    ...

What other cells have defined is not seen, and nothing of the cell is left in the notebook. The estimate is the cell's
value.
"""

from __future__ import annotations

import contextlib
import itertools
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.cli import parse, spoken_to_a_person
from snugfit.cli.output import writing
from snugfit.errors import SnugfitError

if TYPE_CHECKING:
    from snugfit.simulator.prediction import Estimate


def load_ipython_extension(shell: Any) -> None:
    """Gives a notebook the magic; IPython calls it."""
    shell.register_magic_function(estimate_cell, magic_kind="cell", magic_name="estimate")


def estimate_cell(line: str, cell: str) -> Estimate | None:
    """Estimates a cell; what is wrong with it is one message, and no estimate."""
    with spoken_to_a_person(), contextlib.ExitStack() as around:
        try:
            # In the notebook's folder while it runs: there its imports and files are found, and its lines have short names.
            script = next(path for path in map(Path, _names()) if not path.exists())
            with writing(Path.cwd()), script.open("x", encoding="utf-8") as file:  # never another notebook's
                around.callback(script.unlink, missing_ok=True)
                file.write(cell)
            args = parse(["estimate", *shlex.split(line), str(script)])
            from snugfit.cli.estimate import estimated

            return estimated(args, args.device)
        except SnugfitError as error:
            print(f"snugfit: {error}", file=sys.stderr)
            if "NameError" in str(error):
                print("What other cells have defined is not seen: a cell is a whole script.", file=sys.stderr)
            return None


def _names() -> Iterator[str]:
    """Names that the file of a cell may have, in estimates as well."""
    yield "cell.py"
    yield from (f"cell_{number}.py" for number in itertools.count(2))
