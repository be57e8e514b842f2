"""Where the memory goes: what lives at the peak, by category, by tensor, by block of the model, and over time.

Everything is read off a replay, so the categories add up to the allocated peak to the byte: a tensor counts with the
block that the allocator gave it, and the rounding goes to the tensor's category. A workspace that is taken in the very
event of the peak counts as temporaries.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection

from snugfit.recording.allocator import AllocatorConfig
from snugfit.recording.experts import inside
from snugfit.recording.replay import Player, Replay, replay
from snugfit.recording.sources import Source, short_line, sources_of
from snugfit.recording.trace import CATEGORIES, Mark, Storage, Trace, Workspace

OUTSIDE = "(in no part of the model)"
"""Name of the group of tensors that were made in no module."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LiveTensor:
    """One storage that lives at the peak."""

    size_bytes: int
    """Its block, as rounded by the allocator."""
    nbytes: int
    """What was asked for."""
    category: str
    """One of the categories of a trace."""
    module: str
    """Dotted path of the module that made it."""
    operator: str
    """The operator that made it."""
    phase: str
    """The phase in which it was made."""
    line: str = ""
    """`file:line` of a person's code that made it in a forward pass; empty where snugfit's own did, or autograd."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BlockShare:
    """What one block of the model holds at the peak."""

    name: str
    """Dotted path of the block."""
    size_bytes: int
    """Bytes of all tensors that were made in it."""
    bytes_by_category: dict[str, int]
    """The same by category; categories without bytes are left out."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Anatomy:
    """What lives at the allocated peak."""

    peak_allocated_bytes: int
    """The peak, which the categories add up to."""
    bytes_by_category: dict[str, int]
    """Bytes of every category, 0 included."""
    largest: tuple[LiveTensor, ...]
    """The largest tensors, largest first."""
    blocks: tuple[BlockShare, ...]
    """The repeated blocks of the model, and its parts beside them, by name; what is outside of the model first."""
    rounding_bytes: int
    """How much of the peak is rounding up."""
    experts_bytes: dict[str, int]
    """What of each category belongs to experts of a mixture; empty for a model without."""
    sources: tuple[Source, ...]
    """Where everything comes from."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Live bytes over the events of a run, by category, thinned out for drawing."""

    events: tuple[int, ...]
    """Index of the event at each point."""
    bytes_by_category: dict[str, tuple[int, ...]]
    """Live bytes of each category at each point."""
    reserved_bytes: tuple[int, ...]
    """Bytes in segments at each point."""
    marks: tuple[Mark, ...]
    """Where phases begin and end."""

    @property
    def total_bytes(self) -> tuple[int, ...]:
        """Live bytes of all categories at each point."""
        return tuple(map(sum, zip(*self.bytes_by_category.values(), strict=True)))


def block_of(module: str, blocks: Collection[str]) -> str:
    """Returns the block that a module belongs to, or else the part of the model.

    `blocks`: paths of the repeated blocks, those that checkpointing counts.
    The block; where there is none the first part of the path, or `OUTSIDE` for an empty one.
    """
    if not module:
        return OUTSIDE
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in blocks:
            return name
    return parts[0]


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """A sort key that puts `layer.9` before `layer.10`."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def anatomy(
    trace: Trace,
    config: AllocatorConfig | None = None,
    *,
    largest: int = 10,
    played: Replay | None = None,
    experts: Collection[str] = (),
    blocks: Collection[str] = (),
) -> Anatomy:
    """Returns what lives at the allocated peak of an unlimited replay; all zero for a trace without allocations.

    `played`: an unlimited replay of the same trace and options, where there is one already.
    `experts`: dotted paths of the modules that hold experts.
    `blocks`: dotted paths of the repeated blocks.
    """
    if played is None:
        played = replay(trace, config)
    player = Player(trace, config)
    if played.peak_event >= 0:
        # Played again up to the peak, because only there the allocator knows which block each tensor has.
        player.play(through=played.peak_event)

    def live(row: Storage | Workspace, category: str, block: int) -> LiveTensor:
        return LiveTensor(
            size_bytes=player.allocator.block_bytes(block), nbytes=row.nbytes, category=category,
            module=row.module, operator=row.operator, phase=row.phase, line=getattr(row, "line", ""),
        )  # fmt: skip

    held = ((trace.storages[storage], block) for storage, block in sorted(player.held.items()))
    tensors = [live(row, row.category, block) for row, block in held]
    if player.workspace is not None:
        tensors.append(live(trace.workspaces[trace.subjects[played.peak_event]], "temporaries", player.workspace))
    by_category = dict.fromkeys(CATEGORIES, 0)
    names = frozenset(blocks)
    by_block: dict[str, dict[str, int]] = {}
    of_experts: dict[str, int] = {}
    for tensor in tensors:
        by_category[tensor.category] += tensor.size_bytes
        if inside(tensor.module, experts):
            of_experts[tensor.category] = of_experts.get(tensor.category, 0) + tensor.size_bytes
        share = by_block.setdefault(block_of(tensor.module, names), {})
        share[tensor.category] = share.get(tensor.category, 0) + tensor.size_bytes
    assert sum(by_category.values()) == played.peak_allocated_bytes
    return Anatomy(
        peak_allocated_bytes=played.peak_allocated_bytes,
        bytes_by_category=by_category,
        largest=tuple(
            dataclasses.replace(tensor, line=short_line(tensor.line))
            for tensor in sorted(tensors, key=lambda tensor: -tensor.size_bytes)[:largest]
        ),
        blocks=tuple(
            BlockShare(name=name, size_bytes=sum(share.values()), bytes_by_category=share)
            for name, share in sorted(by_block.items(), key=lambda item: _natural(item[0]))
        ),
        rounding_bytes=played.peak_allocated_bytes - player.allocator.requested_bytes,
        experts_bytes=of_experts,
        sources=sources_of(trace, tensors, names),
    )


def timeline(trace: Trace, config: AllocatorConfig | None = None, *, points: int = 1000) -> Timeline:
    """Returns live bytes over time in at most `points` points; each is the highest of its stretch, so no peak is lost."""
    bucket = max(1, -(-len(trace) // points))
    now = dict.fromkeys(CATEGORIES, 0)
    best: dict[int, tuple[int, int, tuple[int, ...], int]] = {}

    def observe(event: int, storage: int | None, block: int, change_bytes: int) -> None:
        category = "temporaries" if storage is None else trace.storages[storage].category
        now[category] += change_bytes
        total = sum(now.values())
        slot = event // bucket
        if slot not in best or total > best[slot][0]:
            best[slot] = (total, event, tuple(now.values()), player.allocator.reserved_bytes)

    player = Player(trace, config, observer=observe)
    player.play()
    rows = [best[slot] for slot in sorted(best)]
    return Timeline(
        events=tuple(row[1] for row in rows),
        bytes_by_category={name: tuple(row[2][i] for row in rows) for i, name in enumerate(CATEGORIES)},
        reserved_bytes=tuple(row[3] for row in rows),
        marks=tuple(trace.marks()),
    )
