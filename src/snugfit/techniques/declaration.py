"""What a technique says about itself. Everything central is a loop over these declarations, in the order of the table.

A rule is a sentence, and when it is said. A rule between two techniques is declared once, by either of them.
Declarations are read before torch is there, and before `Recipe`, which is made of their fields; so they import neither.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from snugfit.techniques.levels import Level
from snugfit.techniques.planning import Changes, Planning

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.workload import Workload

Spellings = Mapping[tuple[str, ...], tuple[str, ...]]
"""Words that other tools use -> the values here that they may stand for, the likeliest first."""
OfRecipe = Callable[["Recipe"], bool]
OfBoth = Callable[["Recipe", "Workload"], bool]

SWITCHED_ON = ("true", "yes", "on", "1")
SWITCHED_OFF = ("false", "no", "off", "0", "none", "null")


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
    may_change: Literal["", "batch", "passes", "update", "loading"] = ""
    """What a change in the middle of a run touches; empty: it stays as it is for the whole run."""
    in_the_loop: str = ""
    """What a loop that keeps its own forward, backward and update (`snugfit.apply`) does in its place; empty: it lives in
    the model."""
    reads_weights: bool = False
    """Whether it needs the weights when it changes a model: each of several processes then builds the model."""
    updated_by: str = ""
    """`module:class` of the `ParameterUpdate` by which parameters step one by one; empty: it leaves the update as it is."""

    planning: Planning = dataclasses.field(default_factory=Planning)
    """What a plan may choose of it, and says of it."""

    # On its page
    example: tuple[Changes, Changes] | str
    """Recipes that differ in it alone, without and with it, whose bytes and times its page shows; or why there are none."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other words for the technique, from `known_as`."""
        return tuple(self.known_as.split())


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
