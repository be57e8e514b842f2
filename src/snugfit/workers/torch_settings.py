"""Switches of torch by which a step goes, as the asking process has set them: they travel with each request."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class TorchSettings(NamedTuple):
    """torch's switches that a program may have set."""

    default_dtype: Any
    """The dtype of floating-point tensors that nobody gave one."""
    threads: int
    """Threads of a run on cpu."""
    orders_einsum: bool
    """Whether `torch.einsum` of three and more tensors is ordered by opt_einsum; torch looks for it when it is imported."""


def of_this_process() -> TorchSettings | None:
    """Returns the settings of this process; None where torch is not loaded, so that the defaults hold."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    einsum = torch.backends.opt_einsum
    return TorchSettings(
        torch.get_default_dtype(), torch.get_num_threads(), bool(einsum.is_available() and einsum.enabled)
    )


@contextmanager
def taken_over(settings: TorchSettings | None) -> Iterator[None]:
    """Context in which a worker's torch is set as the asking process's."""
    if settings is None:
        yield
        return
    import torch

    from snugfit.recorder.registration import threads_on_cpu

    einsum = torch.backends.opt_einsum
    before = torch.get_default_dtype(), einsum.enabled
    try:
        torch.set_default_dtype(settings.default_dtype)
        einsum.enabled = settings.orders_einsum and einsum.is_available()
        with threads_on_cpu(settings.threads):
            yield
    finally:
        torch.set_default_dtype(before[0])
        einsum.enabled = before[1]
