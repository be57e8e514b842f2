"""Options of data and batches: one that was given and means nothing there is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Literal

from snugfit.errors import InputError

Form = Literal["full", "padded", "packed"]

MOST_NUMBERS = 2**48
"""Pixels or tokens of a batch; with channels and bytes, more would not fit the integers that count them."""


@dataclasses.dataclass(eq=False, kw_only=True)
class BatchOptions:
    """Options of one batch; whoever makes it takes those that mean something for it."""

    batch_size: int
    """Samples, B."""
    image_size: int | None = None
    """Side of the images, S; None: the model's own."""
    seq_len: int | None = None
    """Tokens of a sequence, T; None: 512, or fewer where the model takes fewer."""
    frames: int | None = None
    """Frames of a clip, for models of video; None: the model's own."""
    form: Form = "full"
    """Text that fills every sequence; text that is padded, with a mask; or short samples packed, with positions."""
    device: str = "meta"
    """Where the batch is made: `meta` without values, elsewhere with random ones."""

    def __post_init__(self) -> None:
        self._given = {"image_size": self.image_size, "seq_len": self.seq_len, "frames": self.frames}
        self._taken: set[str] = set()
        self.assumed: list[str] = []
        """What neither the model nor the caller said, in words."""
        self.assume: dict[str, Any] = {}
        """What a simulation may take for granted about the batch's values, by the names of `Assumptions`."""
        numbers = self.batch_size * (self.image_size or 1) ** 2 * (self.seq_len or 1) * (self.frames or 1)
        if numbers > MOST_NUMBERS:
            given: dict[str, int | None] = {"batch_size": self.batch_size, **self._given}
            sizes = ", ".join(f"{option(name)} {value}" for name, value in given.items() if value is not None)
            raise InputError(f"{sizes}: such a batch has more numbers than any machine holds. Give smaller ones.")

    def take(self, name: str) -> int | None:
        """Returns image_size, seq_len or frames, and notes that it was used."""
        self._taken.add(name)
        return self._given[name]

    def check(self, what: str) -> None:
        """Raises where an option was given that nobody has used."""
        refuse(self._given, self._taken, what)


def refuse(given: Mapping[str, Any], meant: Collection[str], what: str) -> None:
    """Raises `InputError` for all given options that are not `meant` here; `what` says what these are for.

    `given`: name -> what was given; None or False: nothing.
    """
    idle = [option(name) for name, value in given.items() if value not in (None, False) and name not in meant]
    if idle:
        instead = [option(name) for name in ("image_size", "seq_len") if name in meant and given.get(name) is None]
        more = f", or give {' and '.join(instead)}" if instead else ""
        raise InputError(f"{', '.join(idle)} has no meaning for {what}. Leave it out{more}.")


def option(name: str) -> str:
    """Returns how a field is spelled on the command line."""
    return "--" + name.replace("_", "-")
