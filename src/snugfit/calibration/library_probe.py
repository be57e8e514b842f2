"""Which libraries work here, found out in a process of its own: one that does not may take its process with it."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from snugfit.errors import in_words
from snugfit.library_imports import importing


@dataclasses.dataclass(frozen=True, slots=True)
class Tried:
    """What came of trying a library."""

    library: str
    """The module that was imported."""
    problem: str = ""
    """Why it does not work; empty: it does."""
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What it said of itself."""


def try_libraries(modules: Sequence[str]) -> dict[str, Tried]:
    """Imports libraries and uses them a little, one after the other in one process.

    Args:
        modules: Names of modules.

    Returns:
        Module -> what came of it; of those that a dying process left out, its last words.
    """
    ran = subprocess.run([sys.executable, "-m", __name__, *modules], capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"library"')]
    found = {row["library"]: Tried(**row) for row in lines}
    words = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
    return {name: found.get(name) or Tried(name, f"its process ended: {words}") for name in modules}


def _torch(torch: Any) -> dict[str, Any]:
    from snugfit.device_kinds import CPU, default_device, name_of
    from snugfit.processor import this_processor

    device = torch.device(default_device())
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "card": None if device.type == CPU else name_of(device),
        "processor": this_processor().in_words(),
    }


def _bitsandbytes(bitsandbytes: Any) -> dict[str, Any]:
    import torch

    from snugfit.device_kinds import default_device

    bitsandbytes.functional.quantize_4bit(torch.ones(64, 64, device=default_device()))
    return {}


def _pynvml(pynvml: Any) -> dict[str, Any]:
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    return {}


_USES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "torch": _torch,
    "bitsandbytes": _bitsandbytes,
    "pynvml": _pynvml,
}


def _tell(module: str) -> Tried:
    try:
        with importing():
            library = importlib.import_module(module)
            return Tried(module, facts=_USES[module](library) if module in _USES else {})
    except Exception as error:
        return Tried(module, in_words(error))


if __name__ == "__main__":
    for word in sys.argv[1:]:
        sys.stdout.write(json.dumps(dataclasses.asdict(_tell(word))) + "\n")
        sys.stdout.flush()
