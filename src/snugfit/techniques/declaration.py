"""What a technique says about itself. Everything central is a loop over these declarations, in the order of the table.

The rules are functions of a recipe, and of a recipe and a workload: what cannot be, what is no longer exact. A rule between
two techniques is declared once, by either of them. Declarations are read before torch is there, so they import none.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.workload import Workload

Level = Literal["exact", "rounding", "different"]
LEVELS: tuple[Level, ...] = ("exact", "rounding", "different")
Changes = Mapping[str, Any]
"""Recipe field -> value."""
Spellings = Mapping[tuple[str, ...], tuple[str, ...]]
"""Words that other tools use -> the values here that they may stand for, the likeliest first."""
Start = Literal["microbatches", "in backward", "few bits", "adapters"]
"""Ways to begin the search for the least memory; no two of them go together."""

Stage = Literal["numbers", "layers", "calls", "saved tensors", "blocks", "model"]
STAGES: tuple[Stage, ...] = get_args(Stage)

SWITCHED_ON = ("true", "yes", "on", "1")
SWITCHED_OFF = ("false", "no", "off", "0", "none", "null")


def _none(*_: Any) -> Iterator[Any]:
    return iter(())


def _always(_: Any) -> bool:
    return True


class Situation(Protocol):
    """What a plan is for, as far as a technique asks."""

    @property
    def workload(self) -> Workload:
        """What is learned."""

    @property
    def on_cpu(self) -> bool:
        """Whether training runs on a CPU."""

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability of the card."""


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Changes that belong together and that the planner may try."""

    name: str
    """How the search calls them."""
    changes: Changes
    """What is changed."""
    level: Level = "exact"
    """What has to be allowed for it."""
    when: Callable[[Situation], bool] = _always
    """Whether it is worth trying here."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """What the planner may do with a technique, and the words of a plan about it."""

    switch: Changes = dataclasses.field(default_factory=dict)
    """Taken for good where the model has something to switch and that shows less memory and no more time."""
    nothing_there: str = ""
    """Why it is off where the model has nothing to switch."""
    points: Mapping[str, Changes] = dataclasses.field(default_factory=dict)
    """What it can do to all blocks alike; choices of some blocks lie between these."""
    updates: tuple[Choice, ...] = ()
    """Ways of updating."""
    variants: tuple[Choice, ...] = ()
    """What changes the passes themselves: number format, loss, adapters."""
    on_host: bool = False
    """Whether it moves things to the host, which saves nothing where the device is the host."""
    follows: Callable[[Recipe, Workload], Changes] | None = None
    """What its field is where it follows from the rest of the recipe."""
    least: Changes = dataclasses.field(default_factory=dict)
    """What it is set to where memory is all that counts."""
    starts: tuple[Start, ...] | None = None
    """Searches for the least memory that begin with `least`; None: all."""
    moves: tuple[tuple[Level, Changes], ...] = ()
    """What such a search tries next, and the level that has to be allowed."""
    turns: tuple[Changes, ...] = ()
    """How a fallback turns it up."""
    trials: tuple[Changes, ...] = ()
    """What it would be if it were on, to ask why it is off."""
    goes_with: tuple[str, ...] = ()
    """Fields that change together with its own."""
    never: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Fields that are only used when they are pinned -> why."""
    because: str = ""
    """Why it is as it is, where no two simulated recipes show it."""
    instead: Callable[[Recipe, str], str] | None = None
    """What the plan does in its place, from its recipe and the plan's words for `checkpoint`."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerName:
    """An optimizer that can be asked for by name."""

    name: str
    """The word."""
    holds: str = ""
    """The optimizer whose algorithm this is, its state being held in another way; empty: an algorithm of its own."""
    level: Level = "exact"
    """Fidelity to the algorithm."""
    reason: str = ""
    """Why that is not exact; `{}` stands for the algorithm."""
    built_by: str = ""
    """`module:class` of an `OwnOptimizer`; empty: torch.optim has it as it is."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Technique:
    """One technique: what it is called, the rules of its fields, what may be done with it, where its code is."""

    name: str
    """Name of its package, its test and its page."""
    fields: tuple[str, ...]
    """Fields of the recipe that ask for it."""
    rows: tuple[int, ...]
    """Numbers in the list of all techniques of the guides."""
    level: Level
    """Fidelity where it fits the workload; its essay says when it does not."""
    summary: str
    """What it saves, in one line."""
    known_as: str = ""
    """What people call it or type to find it: small letters with dashes, separated by spaces."""

    # What people type
    names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Fields that take names of modules or patterns -> their words that are no names."""
    free: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Fields that take any word -> what such a word is called."""
    spellings: Mapping[str, Spellings] = dataclasses.field(default_factory=dict)
    """Field -> how other tools spell its values. Nothing is accepted under another name; it is only recognised."""
    meanings: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    """Field -> value -> what it means, where a suggestion alone would not say enough."""
    optimizers: tuple[OptimizerName, ...] = ()
    """Optimizers that it brings; their names are values of the field `optimizer`."""

    # Rules: each yields sentences for people
    problems: Callable[[Recipe], Iterator[str]] = _none
    """What is wrong with its values alone."""
    contradictions: Callable[[Recipe], Iterator[str]] = _none
    """Which other fields it does not go with, whatever the workload."""
    misfits: Callable[[Recipe, Workload], Iterator[str]] = _none
    """Which workloads it cannot train."""
    lowers: Callable[[Recipe, Workload], Iterator[tuple[str, Level, str]]] = _none
    """(field, level, reason) where the update is not that of plain training."""

    # In a run
    hooks: str = ""
    """`module:class` of its `ModelTechnique`."""
    stage: Stage = "layers"
    """When its hooks change the model; later ones surround earlier ones."""
    may_change: Literal["", "batch", "passes", "update", "loading"] = ""
    """What a change in the middle of a run touches; empty: it stays as it is for the whole run."""
    per_parameter: bool = False
    """Whether it updates parameters one by one, each with an optimizer of its own."""

    plan: Planned = Planned()
    """What the planner makes of it."""
    example: tuple[Changes, Changes] | None = None
    """Recipes that differ in it alone, without and with it, whose bytes and times its page shows."""
    unmeasured: str = ""
    """Why there is no such example."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """The words of `known_as`."""
        return tuple(self.known_as.split())


def loaded(place: str) -> Any:
    """Returns what a `module:name` of a declaration stands for; loads torch."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
