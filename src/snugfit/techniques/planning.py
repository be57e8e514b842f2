"""What a technique lets a plan choose, and what is to be said of it where a plan goes without.

A technique names its choices once, with the fidelity they cost. From their order the planner derives what it tries for
speed (all of them), where memory is all that counts, as a fallback in the middle of a run, and to say why a field is off.
Imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from snugfit.techniques.levels import Level

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.workload import Workload

Changes = Mapping[str, Any]
"""Recipe field -> value."""
UNCALLED = (
    "it saves nothing here: the model calls none of its blocks, only parts of them, or it uses their weights itself"
)
"""Why a plan leaves out what is done to blocks when they are called."""


@dataclasses.dataclass(frozen=True, slots=True)
class Situation:
    """What a plan is for."""

    workload: Workload
    """What is learned."""
    on_cpu: bool
    """Whether training runs on a CPU."""
    bf16: bool
    """Whether the device computes in bf16 by itself."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """What a plan has found out, for a technique to say why it is off."""

    workload: Workload
    """What is learned."""
    switchable: bool
    """Whether the model has something that the technique could switch."""
    one_builds: bool
    """Whether the first of several processes builds the model for all."""
    host_bytes: int
    """Host memory of a machine that the plan takes."""
    calls_blocks: bool
    """Whether the model calls its repeated blocks, as far as simulations have shown."""


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Changes that belong together and that the planner may try."""

    changes: Changes
    """What is changed."""
    level: Level = "exact"
    """What has to be allowed for it."""
    when: Callable[[Situation], bool] = lambda _: True
    """Whether it may be the fastest here."""


def first_or_named(chosen: Sequence[int], names: Sequence[str]) -> str | tuple[str, ...]:
    """Returns the shortest way to say which blocks are meant, some of them."""
    in_front = list(chosen) == list(range(len(chosen)))
    return f"blocks:{len(chosen)}" if in_front else tuple(names[number] for number in chosen)


def says_how_many(value: str | tuple[str, ...], *words: str) -> bool:
    """Returns whether a value is one of some words with a whole number of at least 1 behind it, such as `blocks:3`."""
    word, _, number = value.partition(":") if isinstance(value, str) else ("", "", "")
    return word in words and number.isdecimal() and int(number) > 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ByBlock:
    """How something is done to blocks one by one; the first choice of the technique does it to all."""

    how: Literal["recompute", "offload"]
    """Whether a block is computed again in backward, or what it holds goes to the host."""
    value: Callable[[Sequence[int], Sequence[str]], Any]
    """Returns the value for some blocks, from their indices and the names of all blocks."""
    count: Callable[[Any, int], int | None]
    """Returns to how many blocks a value does it, told how many there are; None where it does not choose among them."""
    when_called: Callable[[Any], bool]
    """Returns whether a value does it to blocks when they are called, so that it does nothing to those that never are."""
    in_words: str = ""
    """What doing it to all blocks is called, to say what that would cost more."""

    def chosen(self, value: Any, names: Sequence[str]) -> tuple[int, ...] | None:
        """Returns the indices of the blocks that a value of `value` means; None where it is none of those."""
        if isinstance(value, tuple):
            return tuple(map(names.index, value)) if set(value) <= set(names) else None
        fronts = (tuple(range(count)) for count in range(len(names) + 1))
        return next((front for front in fronts if self.value(front, names) == value), None)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Planning:
    """What a technique lets a plan choose."""

    part: Literal["", "passes", "update", "blocks", "switch", "build"] = ""
    """What its choices are about: the numbers and layers of the passes; the update; what is done to all blocks alike, single
    blocks lying between; a switch, set for good where it shows less memory and no more time; how the model is built."""
    choices: tuple[Choice, ...] = ()
    """What is tried where speed counts. Where the field is off, it is asked why the first of each fidelity was not taken."""
    leaner: tuple[Choice, ...] | None = None
    """What is tried where memory is all that counts, what needs the least first; None: the first choice. What stands in the
    way of one (another optimizer of an update on the host) is turned back."""
    by_block: ByBlock | None = None
    """How it is done to some blocks; None: to all or none."""
    switchable: bool = False
    """Whether it only does something to models that have what it looks for, which its hooks tell (`may_gain`)."""
    on_host: bool = False
    """Whether it moves things to the host, which saves nothing where the device is the host."""

    # Where choices are not enough
    strategies: Callable[[Situation], Iterator[Changes]] | None = None
    """How several GPUs may share a training, the fastest first: each is searched by itself."""
    last_resort: Callable[[Recipe, Workload], Iterator[Changes]] | None = None
    """What a plan turns to where a workload cannot be trained otherwise, or nothing fits; what changes least comes first."""
    refined: Callable[[Recipe, Workload], Iterator[Changes]] | None = None
    """What is tried on the recipe that a search ends with, because its effect only shows beside all the rest."""
    follows: Callable[[Recipe, Workload], Changes] | None = None
    """What its field is where it follows from the rest of the recipe."""

    # What a plan says
    off: Callable[[str, Planned], str] | None = None
    """Why a field is off where no simulation has to be asked; empty where one has to."""
    because: str = ""
    """Why it is as it is, where no two simulated recipes show it."""
    instead: Callable[[Recipe, str], str] | None = None
    """What the plan does in its place, from its recipe and the plan's words for the blocks that are computed again."""
    quiet: bool = False
    """Whether a plan's card names its first field only where it is on, as it does all others."""
    advised: str = ""
    """What `least` would be to a script that goes without it, in words; where they have `{blocks}`, which stands for how
    many repeated blocks its model has, nothing is said of a model without."""

    @property
    def lean(self) -> tuple[Choice, ...]:
        """What is tried where memory is all that counts."""
        return self.choices[:1] if self.leaner is None else self.leaner

    @property
    def least(self) -> Choice | None:
        """What needs the least memory of its choices."""
        return self.lean[0] if self.choices and self.lean else None
