"""What a technique says about itself. Everything central is a loop over these declarations, in the order of the table.

A rule is a sentence, and when it is said. A rule between two techniques is declared once, by either of them.
Declarations are read before torch is there, and before `Recipe`, which is made of their fields; so they import neither.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

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
STARTS: tuple[Start, ...] = get_args(Start)
"""Ways to begin the search for the least memory; no two of them go together."""

Stage = Literal["numbers", "layers", "calls", "saved tensors", "blocks", "model"]
STAGES: tuple[Stage, ...] = get_args(Stage)

OfRecipe = Callable[["Recipe"], bool]
OfBoth = Callable[["Recipe", "Workload"], bool]

SWITCHED_ON = ("true", "yes", "on", "1")
SWITCHED_OFF = ("false", "no", "off", "0", "none", "null")


@dataclasses.dataclass(frozen=True, slots=True)
class Situation:
    """What a plan is for."""

    workload: Workload
    """What is learned."""
    on_cpu: bool
    """Whether training runs on a CPU."""
    bf16: bool
    """Whether the device computes in bf16 by itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Changes that belong together and that the planner may try."""

    changes: Changes
    """What is changed."""
    level: Level = "exact"
    """What has to be allowed for it."""
    when: Callable[[Situation], bool] = lambda _: True
    """Whether it is worth trying here."""

    @property
    def name(self) -> str:
        """What the search calls these changes."""
        return ", ".join(f"{field}={value}" for field, value in self.changes.items())


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ByBlock:
    """How something is done to blocks one by one, by the first field of its technique."""

    how: Literal["again", "away"]
    """Whether a block is computed again in backward, or what it holds goes away to the host."""
    everywhere: Changes
    """Done to all blocks."""
    value: Callable[[Sequence[int], Sequence[str]], Any]
    """Returns the value for some blocks, from their indices and the names of all blocks."""
    count: Callable[[Any, int], int | None]
    """Returns to how many blocks a value does it, told how many there are; None where it does not choose among them."""
    in_words: str = ""
    """What doing it to all blocks is called, to say what that would cost more."""


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
    free_word: str = ""
    """What a word is called where its first field takes any."""
    spellings: Spellings = dataclasses.field(default_factory=dict)
    """How other tools spell the values of its first field. Nothing is accepted so; it is only recognised."""
    meanings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Value of its first field -> what it means, where a suggestion alone would not say enough."""
    optimizers: tuple[OptimizerName, ...] = ()
    """Optimizers that it brings; their names are values of the field `optimizer`."""

    # Rules: a sentence -> when it is said of a recipe r (and a workload w); {recipe.field} in it stands for a value
    rules: Mapping[str, OfRecipe] = dataclasses.field(default_factory=dict)
    """What is wrong with its values, and which other fields they do not go with, whatever the workload."""
    misfits: Mapping[str, OfBoth] = dataclasses.field(default_factory=dict)
    """Which workloads it cannot train."""
    lowers: Mapping[str, tuple[Level, OfBoth]] = dataclasses.field(default_factory=dict)
    """Why the update is not that of plain training, said of its first field."""
    only_on_cards: Mapping[str, OfRecipe] = dataclasses.field(default_factory=dict)
    """Why a rehearsal cannot have it, said of its first field."""

    # In a run
    hooks: str = ""
    """`module:class` of its `ModelTechnique`."""
    stage: Stage = "layers"
    """When its hooks change the model; later ones surround earlier ones."""
    may_change: Literal["", "batch", "passes", "update", "loading"] = ""
    """What a change in the middle of a run touches; empty: it stays as it is for the whole run."""
    per_parameter: bool = False
    """Whether parameters step one by one."""
    at_build: bool = False
    """Whether it is about building the model: no step depends on it."""
    in_the_loop: str = ""
    """What a loop that keeps its own forward, backward and update (`snugfit.apply`) does in its place; empty: it lives in
    the model."""
    stays: str = ""
    """What of it stays in a model that it is taken off, in words."""
    reads_weights: bool = False
    """Whether it needs the weights when it changes a model: each of several processes then builds the model."""
    updated_by: str = ""
    """`module:class` of the `ParameterUpdate` that does it; empty: on the device, as they are."""

    # In a plan
    least: Changes = dataclasses.field(default_factory=dict)
    """What it is set to where memory is all that counts."""
    starts: tuple[Start, ...] = STARTS
    """Searches for the least memory that begin with that."""
    moves: tuple[tuple[Level, Changes], ...] | None = None
    """What such a search tries next, and the level that has to be allowed; None: `least`, at its own level."""
    turns: tuple[Changes, ...] | None = None
    """How a fallback turns it up; None: to `least`, where it may change in the middle of a run."""
    trials: tuple[Changes, ...] | None = None
    """What it would be if it were on, to ask why it is off; None: `least`."""
    nothing_to_switch: str = ""
    """Not empty: set to `least` for good where the model has something to switch and that shows less memory and no more
    time; the text is what is said where it has nothing."""
    points: Mapping[str, Changes] = dataclasses.field(default_factory=dict)
    """What it can do to all blocks alike; choices of some blocks lie between these."""
    by_block: ByBlock | None = None
    """How it is done to some blocks; None: to all or none."""
    updates: tuple[Choice, ...] = ()
    """Ways of updating."""
    variants: tuple[Choice, ...] = ()
    """What changes the passes themselves: number format, loss, adapters."""
    ways: Callable[[Situation], Iterator[Changes]] | None = None
    """What its fields may be for a plan as a whole, the fastest first: each is searched by itself."""
    ways_out: Callable[[Recipe, Workload], Iterator[Changes]] | None = None
    """What a plan turns to where a workload cannot be trained otherwise, or nothing fits; what changes least comes first."""
    finishing: Callable[[Recipe, Workload], Iterator[Changes]] | None = None
    """What is tried on the recipe that a search ends with, because its effect only shows beside all the rest."""
    way_fields: tuple[str, ...] = ()
    """The fields that these ways set."""
    no_ways: str = ""
    """Why there are no ways, where there are none."""
    on_host: bool = False
    """Whether it moves things to the host, which saves nothing where the device is the host."""
    follows: Callable[[Recipe, Workload], Changes] | None = None
    """What its field is where it follows from the rest of the recipe."""
    goes_with: tuple[str, ...] = ()
    """Fields that change together with its own."""
    never: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Fields that are only used when they are pinned -> why."""
    because: str = ""
    """Why it is as it is, where no two simulated recipes show it."""
    instead: Callable[[Recipe, str], str] | None = None
    """What the plan does in its place, from its recipe and the plan's words for the blocks that are computed again."""
    quiet: bool = False
    """Whether a plan's card names its first field only where it is on, as it does all others."""

    # In the profile of a script
    advised: str = ""
    """What `least` would be to a script that goes without it, in words; where they have `{blocks}`, which stands for how
    many repeated blocks its model has, nothing is said of a model without."""

    # On its page
    example: tuple[Changes, Changes] | None = None
    """Recipes that differ in it alone, without and with it, whose bytes and times its page shows."""
    unmeasured: str = ""
    """Why there is no such example."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other words for the technique, from `known_as`."""
        return tuple(self.known_as.split())

    @property
    def all_moves(self) -> tuple[tuple[Level, Changes], ...]:
        """`moves`, or the default where that is None."""
        return tuple((self.level, one) for one in self._least) if self.moves is None else self.moves

    @property
    def all_turns(self) -> tuple[Changes, ...]:
        """`turns`, or the default where that is None."""
        return (self._least if self.may_change else ()) if self.turns is None else self.turns

    @property
    def all_trials(self) -> tuple[Changes, ...]:
        """`trials`, or the default where that is None."""
        return self._least if self.trials is None else self.trials

    @property
    def _least(self) -> tuple[Changes, ...]:
        return (self.least,) if self.least else ()


def loaded(place: str) -> Any:
    """Returns what a `module:name` of a declaration stands for; loads torch."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def said(rules: Mapping[str, Callable[..., bool]], recipe: Recipe, workload: Workload | None = None) -> Iterator[str]:
    """Yields the sentences of rules that hold; those of recipes alone are asked without a workload."""
    both = (recipe,) if workload is None else (recipe, workload)
    for sentence, when in rules.items():
        if when(*both):
            batch = (workload and workload.batch_size) or "unknown size"
            yield sentence.format(recipe=recipe, workload=workload, batch=batch)
