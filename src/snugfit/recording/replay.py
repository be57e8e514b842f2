"""Replays of a recording: events are played into an allocator, until the end or until the card is full."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from snugfit.recording.allocator import AllocatorConfig, OutOfMemory
from snugfit.recording.tensor_bytes import allocator_for
from snugfit.recording.trace import ALLOC, EMPTY_CACHE, FREE, RESIZE, WORKSPACE, Trace

Observer = Callable[[int, int | None, int, int], None]
"""Told (event, storage or None for a workspace, block's address, its bytes; negative when it is given back)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """What a replay showed; up to the shortage, if it ran out of memory."""

    peak_allocated_bytes: int
    """The most bytes in live blocks, rounded as the allocator rounds them."""
    peak_reserved_bytes: int
    """The most bytes in segments."""
    reserved_at_peak_bytes: int
    """Bytes in segments when the live blocks were at their peak."""
    peak_requested_bytes: int
    """What had been asked for in the blocks that were live at the peak."""
    peak_event: int
    """Index of the event that reached the allocated peak; -1 when nothing was allocated."""
    peak_phase: str
    """The phase of that event."""
    peak_operator: str
    """The operator of that event."""
    peak_module: str
    """The module of that event."""
    host_peak_bytes: int
    """The most bytes in host storages."""
    peak_with_host_bytes: int
    """The most bytes in live blocks and host storages together: what it takes where both are one memory."""
    retries: int
    """How often all cached segments had to be given back."""
    shortage: tuple[str, str, str] | None
    """Phase, operator and module for which there was no memory; None when it went through."""

    @property
    def fragmentation_bytes(self) -> int:
        """Bytes in segments that no live block used, at the allocated peak."""
        return self.reserved_at_peak_bytes - self.peak_allocated_bytes


class Player:
    """Plays events into an allocator; it can stop anywhere to look around."""

    def __init__(
        self,
        trace: Trace,
        config: AllocatorConfig | None = None,
        capacity_bytes: int | None = None,
        *,
        observer: Observer | None = None,
        segment_observer: Callable[[str, int, int, int], None] | None = None,
    ) -> None:
        """Prepares an empty card; the observers are told of every block, and of every change of segments."""
        self.trace = trace
        self.allocator = allocator_for(config, capacity_bytes, segment_observer)
        self.observer = observer
        self.held: dict[int, int] = {}
        """Living storages on the device: id -> the block's id."""
        self.workspace: int | None = None
        """The block of a workspace, while `play` stands in the middle of its event."""
        self.host_sizes: dict[int, int] = {}
        """Living storages on the host: id -> bytes."""
        self.host_bytes = 0
        self.host_peak_bytes = 0
        self.peak_with_host_bytes = 0
        self.peak_event = -1
        self.reserved_at_peak_bytes = 0
        self.peak_requested_bytes = 0
        self.event = 0
        """Index of the next event; of the present one for an observer, and of the failed one after an `OutOfMemory`."""

    def play(self, *, through: int | None = None) -> None:
        """Plays events from where it is; raises `OutOfMemory` when the card is full.

        `through`: index of the last event to play; when that is a workspace it stays taken and the player goes no
        further. None for all.
        """
        trace, held, observer = self.trace, self.held, self.observer
        take, give_back = self._take, self._give_back
        storages, kinds, subjects = trace.storages, trace.kinds, trace.subjects
        host_sizes = self.host_sizes
        end = len(trace) if through is None else through + 1
        index = self.event
        try:
            for index in range(self.event, end):
                if observer is not None:
                    self.event = index
                kind = kinds[index]
                subject = subjects[index]
                if kind == ALLOC:
                    row = storages[subject]
                    nbytes = row[1]
                    if row[2] == "device":
                        if nbytes:
                            held[subject] = take(index, subject, nbytes, row[7])
                    else:
                        self._keep_on_host(subject, nbytes)
                elif kind == FREE:
                    if subject in held:
                        give_back(index, subject, held.pop(subject))
                    elif subject in host_sizes:
                        self.host_bytes -= host_sizes.pop(subject)
                elif kind == WORKSPACE:
                    work = trace.workspaces[subject]
                    if work.nbytes:
                        block = take(index, None, work.nbytes, work.stream)
                        if index == through:
                            self.workspace = block
                            break
                        give_back(index, None, block)
                elif kind == RESIZE:
                    nbytes = trace.values[index]
                    if storages[subject].place != "device":
                        self._keep_on_host(subject, nbytes)
                        continue
                    # A storage that grows gets its new block before the old one is given back (`resize_bytes_cuda`).
                    old = held.pop(subject, None)
                    if nbytes:
                        held[subject] = take(index, subject, nbytes, storages[subject].stream)
                    if old is not None:
                        give_back(index, subject, old)
                elif kind == EMPTY_CACHE:
                    self.allocator.empty_cache()
            else:
                index = end
        finally:
            self.event = index

    def _keep_on_host(self, storage: int, nbytes: int) -> None:
        self.host_bytes += nbytes - self.host_sizes.get(storage, 0)
        self.host_sizes[storage] = nbytes
        self.host_peak_bytes = max(self.host_peak_bytes, self.host_bytes)
        self.peak_with_host_bytes = max(self.peak_with_host_bytes, self.allocator.allocated_bytes + self.host_bytes)

    def _take(self, event: int, storage: int | None, nbytes: int, stream: int) -> int:
        """Takes a block for a storage, or for a workspace (None), and notes where the peak is."""
        allocator = self.allocator
        peak = allocator.peak_allocated_bytes
        block = allocator.malloc(nbytes, stream)
        if self.observer is not None:
            self.observer(event, storage, block, allocator.block_bytes(block))
        if allocator.allocated_bytes > peak:
            self.peak_event = event
            self.reserved_at_peak_bytes = allocator.reserved_bytes
            self.peak_requested_bytes = allocator.requested_bytes
        if allocator.allocated_bytes + self.host_bytes > self.peak_with_host_bytes:
            self.peak_with_host_bytes = allocator.allocated_bytes + self.host_bytes
        return block

    def _give_back(self, event: int, storage: int | None, block: int) -> None:
        if self.observer is not None:
            self.observer(event, storage, block, -self.allocator.block_bytes(block))
        self.allocator.free(block)


def replay(trace: Trace, config: AllocatorConfig | None = None, capacity_bytes: int | None = None) -> Replay:
    """Replays a recording; returns peaks, where they fall, and where memory ran out, if it did.

    `capacity_bytes`: the card's size, the CUDA context already taken off; None for no limit.
    """
    player = Player(trace, config, capacity_bytes)
    shortage = None
    try:
        player.play()
    except OutOfMemory:
        shortage = trace.where(player.event)
    allocator = player.allocator
    phase, operator, module = trace.where(player.peak_event)
    return Replay(
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        reserved_at_peak_bytes=player.reserved_at_peak_bytes,
        peak_requested_bytes=player.peak_requested_bytes,
        peak_event=player.peak_event,
        peak_phase=phase,
        peak_operator=operator,
        peak_module=module,
        host_peak_bytes=player.host_peak_bytes,
        peak_with_host_bytes=player.peak_with_host_bytes,
        retries=allocator.retries,
        shortage=shortage,
    )
