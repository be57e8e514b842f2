"""What torch.compile's compiler (inductor) is made of, as far as a simulation has to know it.

Inductor writes Python code that makes buffers, reuses and drops them, and calls generated kernels and library operators in
between. In a simulation all of that runs as it is, on fake tensors; only the kernels themselves are neither compiled nor run.

Source: `torch/_inductor/codegen/wrapper.py`, `async_compile.py`, `codegen/common.py` and `torch/_dynamo/device_interface.py`
of torch 2.11 to 2.15.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

Kernel = Callable[[list[torch.Tensor], list[torch.Tensor]], None]
"""Told what a generated kernel writes and what it only reads."""
_TRITON_SIGNATURE = re.compile(r"^def triton_\w+\(([^)]*)\)", re.MULTILINE)


def kernels_stand_in(kernel: Kernel) -> list[tuple[Any, str, Any]]:
    """Returns what has to be replaced (owner, name, value) so that inductor's code runs on fake tensors.

    Args:
        kernel: Called in the place of each generated kernel.
    """
    from torch._inductor.async_compile import AsyncCompile

    def of_cpp(_: Any, argtypes: Sequence[str], source_code: str) -> Any:
        reads = [one.startswith("const ") for one in argtypes if one.endswith("*")]
        return lambda *arguments: _told(kernel, arguments, reads)

    def of_triton(_: Any, kernel_name: str, source_code: str, device_str: str = "") -> Any:
        found = _TRITON_SIGNATURE.search(source_code)
        names = [name.strip() for name in found[1].split(",")] if found else []
        reads = [name.startswith("in_ptr") for name in names if "_ptr" in name]
        return types.SimpleNamespace(run=lambda *arguments, **_: _told(kernel, arguments, reads))

    guards = torch._C._dynamo.guards
    return [
        (AsyncCompile, "cpp_pybinding", of_cpp),
        (AsyncCompile, "triton", of_triton),
        # Written in C++ for speed, these go past dispatch modes and subclasses.
        (guards, "_empty_strided_cpu", lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype)),
        (guards, "_reinterpret_tensor", _reinterpreted),
    ]


def _told(kernel: Kernel, arguments: Sequence[Any], reads: Sequence[bool]) -> None:
    tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
    kernel(
        [tensor for tensor, read in zip(tensors, reads, strict=True) if not read],
        [tensor for tensor, read in zip(tensors, reads, strict=True) if read],
    )


def _reinterpreted(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> torch.Tensor:
    return torch.as_strided(tensor, size, stride, int(tensor.storage_offset()) + offset)


def no_caches() -> Any:
    """Returns a context in which inductor keeps nothing on disk and asks no compiler and no card."""
    from torch._inductor import config

    return config.patch(
        {"force_disable_caches": True, "compile_threads": 1, "size_asserts": False, "alignment_asserts": False}
    )
