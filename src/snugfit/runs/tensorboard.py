"""Rows of metrics as TensorBoard event files, for those who ask for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from snugfit.library_imports import needed
from snugfit.training.run_results import TENSORBOARD


def check_tensorboard() -> None:
    """Raises `InputError` where TensorBoard is not installed."""
    needed("tensorboard needs", "torch.utils.tensorboard", library="tensorboard", install="snugfit[report]")


@contextlib.contextmanager
def tensorboard_rows(path: Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Context with a function that takes rows of metrics; rows of a resumed run replace earlier ones."""
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = None

    def write(row: Mapping[str, Any]) -> None:
        nonlocal writer
        if writer is None:
            writer = SummaryWriter(str(path / TENSORBOARD), purge_step=row["step"])
        for name, value in row.items():
            if name not in ("step", "epoch") and value is not None:
                writer.add_scalar(name, value, row["step"])

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()
