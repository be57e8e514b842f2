"""The options of the CUDA caching allocator, as `PYTORCH_CUDA_ALLOC_CONF` takes them.

Source: `c10/core/AllocatorConfig.h` and `.cpp` of torch, read at
https://github.com/pytorch/pytorch/blob/065861fba7598880aa3216822742a1172d0a197c/c10/core/AllocatorConfig.cpp and in the
headers that torch 2.15 ships. Torch reads the environment; here an option is an argument.
"""

from __future__ import annotations

import dataclasses
import re

from snugfit.errors import InputError, did_you_mean

INTERVALS = 16
"""Powers of two from 1 MiB to 64 GiB, each with its own number of divisions (`kRoundUpPowerOfTwoIntervals`)."""

_ELSEWHERE = (
    "pinned_",
    "release_lock_on_",
    "throw_on_",
    "graph_capture_",
    "expandable_segments_reserve",
    "per_process_",
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorConfig:
    """What decides where a block goes; the defaults are torch's."""

    max_split_size_mb: int | None = None
    """Blocks of this size (MiB) and more are never split; 20 at least, or None for no limit."""
    max_non_split_rounding_mb: int = 20
    """How much larger (MiB) such a block may be than the request that gets it; 20 at least."""
    large_segment_size_mb: int = 20
    """Segments (MiB) that requests between 1 and 10 MiB share, and the granule of expandable segments; 20 at least."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    """Steps between two powers of two that sizes are rounded up to, by size: below 2 MiB, below 4 MiB, ..., from 32 GiB
    on; each a power of two, or 0 for none."""
    expandable_segments: bool = False
    """Whether segments grow instead of new ones being made."""
    garbage_collection_threshold: float = 0.0
    """Share of the allowed memory from which on cached segments are given back by age; 0 for never. Torch looks at it
    only when the limit is a memory fraction."""
    limited_by_fraction: bool = False
    """Whether the capacity is set by `torch.cuda.set_per_process_memory_fraction` and not by the card itself."""

    def __post_init__(self) -> None:
        """Checks the ranges that torch checks.

        Raises:
            InputError: For a value that torch refuses.
        """
        for name in ("max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb"):
            value = getattr(self, name)
            if value is not None and value < 20:
                raise InputError(f"{name} is {value}; torch takes 20 (MiB) and more.")
        if self.large_segment_size_mb % 2:
            raise InputError(f"large_segment_size_mb is {self.large_segment_size_mb}; give an even number.")
        if self.max_split_size_mb is not None and self.max_split_size_mb < self.large_segment_size_mb:
            raise InputError(
                f"max_split_size_mb is {self.max_split_size_mb}, below large_segment_size_mb "
                f"({self.large_segment_size_mb}): shared segments could not be split. Raise the first."
            )
        if not 0 <= self.garbage_collection_threshold < 1:
            raise InputError(
                f"garbage_collection_threshold is {self.garbage_collection_threshold}; it lies between 0 and 1."
            )
        if len(self.roundup_power2_divisions) != INTERVALS:
            raise InputError(f"roundup_power2_divisions needs {INTERVALS} numbers, one for each power of two of MiB.")
        for number in self.roundup_power2_divisions:
            if number < 0 or number & (number - 1):
                raise InputError(f"roundup_power2_divisions holds {number}; torch takes powers of two, or 0 for none.")

    @classmethod
    def from_text(cls, text: str) -> AllocatorConfig:
        """Reads the text that `PYTORCH_CUDA_ALLOC_CONF` takes.

        Args:
            text: Such as `expandable_segments:True,max_split_size_mb:128`; empty for the defaults. Options that move no
                block (pinned memory, locks, `backend:native`) are read over.

        Returns:
            The configuration.

        Raises:
            InputError: For an option or a value that does not exist.
        """
        known = [field.name for field in dataclasses.fields(cls) if field.name != "limited_by_fraction"]
        values: dict[str, object] = {}
        for item in filter(
            None, re.split(r",(?![^\[]*\])", "".join(text.split()))
        ):  # commas in brackets divide nothing
            name, _, value = item.partition(":")
            if name.startswith(_ELSEWHERE) or item == "backend:native":
                continue
            if name not in known:
                raise InputError(f"allocator option {name!r} is unknown; {did_you_mean(name, known)}")
            try:
                values[name] = _value(name, value)
            except ValueError:
                raise InputError(
                    f"allocator option {item!r} cannot be read. Write it as torch does, for example "
                    "expandable_segments:True or roundup_power2_divisions:[256:1,512:2,>:4]."
                ) from None
        return cls(**values)  # type: ignore[arg-type]


def _value(name: str, text: str) -> object:
    if name == "expandable_segments":
        if text not in ("True", "False"):
            raise ValueError(text)
        return text == "True"
    if name == "garbage_collection_threshold":
        return float(text)
    if name == "roundup_power2_divisions":
        return _divisions(text)
    return int(text)


def _divisions(text: str) -> tuple[int, ...]:
    """Fills the table as `parseRoundUpPower2Divisions` does: sizes between two that are named stay without rounding."""
    if not text.startswith("["):
        return (int(text),) * INTERVALS
    table, last = [0] * INTERVALS, None
    for pair in text.strip("[]").split(","):
        size, _, number = pair.partition(":")
        if size == ">":
            start = 0 if last is None else last + 1
            table[start:] = [int(number)] * (INTERVALS - start)
            continue
        if int(size) < 1 or int(size) & (int(size) - 1):
            raise ValueError(size)
        index = min(int(size).bit_length() - 1, INTERVALS - 1)
        if last is None:
            table[:index] = [int(number)] * index
        table[index] = int(number)
        last = index
    return tuple(table)
