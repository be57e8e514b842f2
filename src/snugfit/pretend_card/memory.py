"""The memory of a pretend card: blocks where the caching allocator puts them, bytes that are really there, and an end.

The allocator's addresses are places in one stretch of anonymous pages, far larger than any card and mostly never touched.
So a block that is handed out again holds what its last owner left there, and whoever still reads it sees the new owner's
numbers. Nobody is asked whether a queued operator still does: that is what events are for.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
from collections.abc import Callable
from typing import Any

import torch

from snugfit import private_torch
from snugfit.errors import TrainingError
from snugfit.recording.allocator import CachingAllocator, OutOfMemory
from snugfit.recording.trace_builder import Place
from snugfit.units import format_bytes

ADDRESSES = 1 << 42
"""Places for segments; they are used one after the other, never twice."""
_NO_RESERVE = 0x4000
"""MAP_NORESERVE of Linux, which Python names from 3.13 on: pages count when they are touched."""


class CardMemory:
    """Takes the events that a recorder would write into a trace, and carries them out."""

    def __init__(
        self,
        capacity_bytes: int | None,
        *,
        wait_for_all: Callable[[], None],
        on_block: Callable[[int, int, int], None],
    ) -> None:
        """Starts with an empty card.

        `wait_for_all`: called before a segment goes back to the card, as the driver waits for the device there.
        `on_block`: told of every block that is handed out: its address, its bytes, and the stream that gets it.
        """
        self.allocator = CachingAllocator(capacity_bytes=capacity_bytes, observer=self._on_segment)
        self._wait_for_all = wait_for_all
        self._on_block = on_block
        self._pages = _pages()
        self._bytes = torch.frombuffer(self._pages, dtype=torch.uint8)
        self._first_address = self._bytes.data_ptr()
        self._as_dtype: dict[torch.dtype, torch.Tensor] = {}
        self._blocks: dict[int, tuple[int, int, int]] = {}  # storage's number -> address, bytes asked for, stream
        self._categories: dict[int, str] = {}
        self._made = 0
        self.taken_apart: dict[tuple[str, str], None] = {}
        """Operator and module of all that ran in parts, as in a trace."""

    # -- what a recorder writes

    def __len__(self) -> int:
        """Returns 0: no event is kept."""
        return 0

    def module(self, storage: int) -> str:
        """Returns "": no module is kept."""
        return ""

    def alloc(
        self, nbytes: int, *, place: Place = "device", category: str = "temporaries", stream: int = 0, **_: Any
    ) -> int:
        """Gives a storage its block, if it is on the card, and returns its number; may raise `OutOfMemoryError`.

        `place`: where it lives; the host's memory is not the card's.
        """
        number = self._made
        self._made += 1
        if place == "device" and nbytes:
            self._blocks[number] = (self._malloc(nbytes, stream), nbytes, stream)
        self._categories[number] = category
        return number

    def free(self, storage: int) -> None:
        """Takes a storage's block back."""
        self._categories.pop(storage, None)
        block = self._blocks.pop(storage, None)
        if block is not None:
            self.allocator.free(block[0])

    def resize(self, storage: int, nbytes: int) -> None:
        """Gives a storage a block of another size, with as many of its bytes as fit."""
        with private_torch.without_modes():  # no operator resizes it: Python does, where modes are on
            self._resize(storage, nbytes)

    def _resize(self, storage: int, nbytes: int) -> None:
        before = self.bytes_of(storage)
        old = self._blocks.pop(storage, None)
        if nbytes:
            stream = old[2] if old else 0
            self._blocks[storage] = (self._malloc(nbytes, stream), nbytes, stream)
            if before is not None:
                self._wait_for_all()
                # All work is done by now, so that the old bytes are the right ones.
                kept = min(nbytes, before.numel())
                after = self.bytes_of(storage)
                assert after is not None
                after[:kept].copy_(before[:kept])
        if old is not None:
            self.allocator.free(old[0])

    def workspace(self, nbytes: int, *, stream: int = 0, **_: Any) -> None:
        """Takes the memory that an operator needs inside itself, and frees it."""
        if nbytes:
            self.allocator.free(self._malloc(nbytes, stream))

    def empty_cache(self) -> None:
        """Gives cached segments back to the card."""
        self.allocator.empty_cache()

    def mark(self, phase: str, entered: bool, step: int = 0) -> None:
        """Does nothing: a card knows no phases."""

    def run(self, run: Any) -> int:
        """Does nothing: a card needs no costs."""
        return 0

    def set_module(self, storage: int, module: str) -> None:
        """Does nothing: a card knows no modules."""

    def set_category(self, storage: int, category: str) -> None:
        """Sets what a storage turned out to be."""
        if storage in self._categories:
            self._categories[storage] = category

    def category(self, storage: int) -> str:
        """Returns the category of a storage so far."""
        return self._categories[storage]

    # -- what is there

    def bytes_of(self, storage: int) -> torch.Tensor | None:
        """Returns the bytes of a storage's block, uint8; None for one without a block."""
        block = self._blocks.get(storage)
        return None if block is None else self._bytes[block[0] : block[0] + block[1]]

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        """Fills a block with one byte value."""
        ctypes.memset(self._first_address + address, byte, nbytes)

    def twin(self, tensor: torch.Tensor, storage: int | None) -> torch.Tensor:
        """Returns the CPU tensor on the bytes of a card tensor's storage (None: not on the card)."""
        dtype = tensor.dtype
        block = None if storage is None else self._blocks.get(storage)
        if block is None:
            return torch.empty(tensor.shape, dtype=dtype)
        all_bytes = self._as_dtype.get(dtype)
        if all_bytes is None:
            all_bytes = self._as_dtype[dtype] = self._bytes.view(dtype)
        offset = block[0] // dtype.itemsize + int(tensor.storage_offset())
        return all_bytes.as_strided(tensor.shape, tensor.stride(), offset)

    def _malloc(self, nbytes: int, stream: int) -> int:
        allocator = self.allocator
        try:
            address = allocator.malloc(nbytes, stream)
            self._on_block(address, nbytes, stream)
            return address
        except OutOfMemory as full:
            room = allocator.capacity_bytes - allocator.reserved_bytes
            raise torch.OutOfMemoryError(
                f"CUDA out of memory (pretend card). Tried to allocate {format_bytes(nbytes)}. The card has "
                f"{format_bytes(allocator.capacity_bytes)} for this process, of which {format_bytes(room)} is free; "
                f"{format_bytes(allocator.allocated_bytes)} is allocated, and "
                f"{format_bytes(allocator.reserved_bytes - allocator.allocated_bytes)} is reserved but unallocated."
            ) from full

    def _on_segment(self, action: str, address: int, nbytes: int, stream: int) -> None:
        if address + nbytes > ADDRESSES:
            raise TrainingError("the pretend card has used up its addresses; start the run again from its last state.")
        if action in ("segment_free", "segment_unmap"):
            self._wait_for_all()
            # The pages go back to the system, as the segment does to the card.
            self._pages.madvise(mmap.MADV_DONTNEED, address, nbytes)


def _pages() -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    try:
        return mmap.mmap(-1, ADDRESSES, flags=flags)
    except OSError:
        gc.collect()  # cards of earlier runs that only refer to themselves
        return mmap.mmap(-1, ADDRESSES, flags=flags)
