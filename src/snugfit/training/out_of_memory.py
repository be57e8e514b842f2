"""A failed allocation: how it is told from other errors, and how its memory comes back.

CUDA has an error class of its own; the CPU allocator of torch only has a message, and maps of host memory fail as the
operating system says. An exception that is kept keeps its frames, and they keep their tensors, so the frames are emptied
before anything is tried again.
"""

from __future__ import annotations

import errno
import gc
import traceback
from collections.abc import Callable
from typing import Any

import torch

from snugfit import device_kinds

_MESSAGES = (
    "DefaultCPUAllocator",  # c10/core/impl/alloc_cpu.cpp: "can't allocate memory" and "not enough memory"
    "std::bad_alloc",  # C++'s own error, which torch passes on as a RuntimeError
    "CUBLAS_STATUS_ALLOC_FAILED",
)
"""What a RuntimeError says where torch has no error class."""


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error means that memory ran out, on the device or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


def release_traceback(error: BaseException) -> str:
    """Empties the frames of an error that is being handled, so their tensors can be freed; returns its first line."""
    first = next(iter(str(error).splitlines()), "") or type(error).__name__
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
    return first


def free_memory(device: torch.device) -> None:
    """Frees what nothing refers to, and the allocator's cached segments; call it once the error itself is gone."""
    gc.collect()
    device_kinds.give_back(device)


def tried(action: Callable[[], Any]) -> tuple[Any, str | None]:
    """Does something that may run out of memory; other errors pass.

    Returns what the action returns, and None; or None and the first line of the error, whose frames are emptied.
    """
    try:
        return action(), None
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None, release_traceback(error)


def retry_after_freeing(action: Callable[[], Any], device: torch.device) -> Any:
    """Does something that needs next to no memory; on failure frees memory and does it once more."""
    result, cause = tried(action)
    if cause is None:
        return result
    free_memory(device)
    return action()
