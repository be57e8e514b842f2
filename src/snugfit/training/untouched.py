"""Running a model without leaving a trace: whatever a pass changes on it, and every random number, is put back.

For checks that run the caller's own code on a few samples. Put back are the generators of torch, Python and NumPy, all
buffers (running statistics, the vectors of spectral norm), the training flags, and the attributes of every module, counters
and caches included. What a forward hook or a loss keeps outside of modules is not known here and stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.training import random_state
from snugfit.workloads.captured_modules import captured_modules

_TABLES = ("_parameters", "_modules", "_buffers")


@contextmanager
def untouched(parts: Iterable[object]) -> Iterator[None]:
    """Context after which models and random numbers are as they were.

    Args:
        parts: Models, and functions that may be or hold modules (a loss); anything else is left alone.
    """
    random = random_state.capture()
    kept = [_Kept(module) for module in captured_modules(*parts)]
    try:
        yield
    finally:
        random_state.restore(random)
        for one in kept:
            one.restore()


class _Kept:
    """One module as it was."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._attributes = {name: value for name, value in vars(module).items() if name not in _TABLES}
        self._buffers: dict[str, tuple[Tensor | None, Tensor | None]] = {
            name: (buffer, None if buffer is None else buffer.detach().clone())
            for name, buffer in module._buffers.items()
        }

    def restore(self) -> None:
        """Puts everything back."""
        own: dict[str, Any] = vars(self._module)
        for name in [name for name in own if name not in self._attributes and name not in _TABLES]:
            del own[name]
        own.update(self._attributes)
        table = self._module._buffers
        for name in [name for name in table if name not in self._buffers]:
            del table[name]
        for name, (buffer, values) in self._buffers.items():
            table[name] = buffer
            if buffer is not None and values is not None:  # batch norm changes them without counting the version up
                with torch.no_grad():
                    buffer.copy_(values)
