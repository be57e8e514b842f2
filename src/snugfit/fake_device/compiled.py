"""How a compiled model runs in a simulation: torch.compile itself, with kernels that compute nothing."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from snugfit.fake_device.personality import Personality
from snugfit.fake_device.replaced import replaced
from snugfit.private_torch import compiler

_library: list[torch.library.Library] = []


@contextmanager
def compiled_on_fakes(personality: Personality) -> Iterator[None]:
    torch._dynamo.reset()
    with replaced(compiler.kernels_stand_in(_fused_kernel)), compiler.no_caches():
        try:
            yield
        finally:
            torch._dynamo.reset()


def _fused_kernel(written: list[torch.Tensor], read: list[torch.Tensor]) -> None:
    _operator()(written, read)


@functools.cache
def _operator() -> Any:
    """An operator that reads and writes whole tensors once and makes nothing."""
    library = torch.library.Library("snugfit", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("fused_kernel(Tensor(a!)[] written, Tensor[] read) -> ()")  # type: ignore[no-untyped-call]
    torch.library.register_fake("snugfit::fused_kernel", lambda written, read: None, lib=library)
    _library.append(library)
    return torch.ops.snugfit.fused_kernel.default
