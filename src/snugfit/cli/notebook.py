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
import shlex
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile
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
            folder = Path.cwd()
            with writing(folder):
                script = around.enter_context(NamedTemporaryFile("w", dir=folder, prefix="cell_", suffix=".py"))
                script.write(cell)
                script.flush()
            args = parse(["estimate", *shlex.split(line), Path(script.name).name])
            from snugfit.cli.estimate import estimated

            return estimated(args, args.device)
        except SnugfitError as error:
            print(f"snugfit: {error}", file=sys.stderr)
            return None
