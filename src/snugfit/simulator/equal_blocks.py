"""Blocks that are alike are recorded a few times, and the recording of the whole model follows from that.

A model of 32 equal layers does in each what it does in the others. It is recorded with three of them and with four; where
the second recording is the first with one stretch more at some places, so is that of the whole model with many more
(`recording/expansion.py`). Of blocks of which the first K are checkpointed, those that do or those that do not are a row.
Whatever does not fit is recorded whole: blocks that differ in anything but their number, recipes that choose among blocks
otherwise, anything that the two recordings show and no rule covers. What is found so is the recording of the whole model to
the last byte and the last operator, which the tests show for every configuration of the accuracy list.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from snugfit.errors import SnugfitWarning
from snugfit.fake_device.personality import Personality
from snugfit.recipe import Recipe
from snugfit.recording.expansion import Expansion
from snugfit.recording.recording import Recording
from snugfit.recording.repeated_regions import NotAlike
from snugfit.simulator.alike_modules import rows_alike
from snugfit.techniques.blocks import chosen_blocks, find_blocks
from snugfit.techniques.shard.buckets import BUCKET_BYTES
from snugfit.values.chance import Chance

FEW = 3
"""Blocks of the first recording; the second one has one more."""
FEW_AWAY = 8
"""The same where the inputs of blocks leave for the host: several are on their way at a time, and the first pass goes
through each block twice."""
FEW_SHARED = 5
"""The same with several processes: shared weights are collected, and gradients added up, beside the blocks next to them."""
_CONTAINERS = (nn.Sequential, nn.ModuleList)
_LEAST_BYTES = 2
"""Bytes of a number in the smallest format that is trained."""


@dataclasses.dataclass(eq=False)
class EqualBlocks:
    """Neighbours in one container that are alike, and how many of them are there."""

    container: nn.Module
    """A `Sequential` or `ModuleList`."""
    path: str
    """Its path in the model."""
    first: int
    """Number of the first of the alike blocks."""
    count: int
    """How many there are."""
    few: int
    """How many the first recording has."""
    beside: int = 0
    """Blocks beside them that are as large, and recorded each time."""
    counted: int | None = None
    """The K of `blocks:K` where they are among these K blocks."""

    @property
    def worth(self) -> bool:
        """Whether two short recordings are quicker than a whole one."""
        return self.count > 2 * (self.few + 1) + self.beside

    def recipe(self, recipe: Recipe, kept: int) -> Recipe:
        """Returns what the recipe is of a model that has a number of them."""
        if self.counted is None:
            return recipe
        return recipe.replace(checkpoint=f"blocks:{self.counted - self.count + kept}")

    def __post_init__(self) -> None:
        self._children = dict(self.container._modules)

    @property
    def modules(self) -> list[nn.Module]:
        """The alike blocks."""
        return list(self.container.children())[self.first : self.first + self.count]

    def paths(self, kept: int) -> list[str]:
        """Returns the paths of all that is in the container with a number of the alike blocks kept."""
        return [f"{self.path}.{name}" if self.path else name for name in self._kept(kept)]

    def _kept(self, kept: int) -> dict[str, nn.Module | None]:
        names, children = list(self._children), list(self._children.values())
        gone = range(self.first + kept, self.first + self.count)
        left = [number for number in range(len(children)) if number not in gone]
        numbered = isinstance(self.container, nn.ModuleList) or all(name.isdigit() for name in names)
        return {names[place] if numbered else names[number]: children[number] for place, number in enumerate(left)}

    @contextmanager
    def only(self, kept: int) -> Iterator[None]:
        """The model has a number of the alike blocks while the context is open."""
        self.container._modules = self._kept(kept)
        try:
            yield
        finally:
            self.container._modules = dict(self._children)


def equal_blocks(
    model: nn.Module, recipe: Recipe, personality: Personality, settings: Mapping[str, Any], ranks: int
) -> EqualBlocks | None:
    """Returns the longest row of alike blocks; None where the model has none, or the run is recorded whole.

    `settings`: training settings, of which some name modules.
    `ranks`: processes that share the batch.
    """
    if not personality.is_card or recipe.compile != "none" or _chooses(recipe, settings):
        return None
    containers = {name.rpartition(".")[0] for name in find_blocks(model)}
    few = FEW if ranks == 1 else FEW_SHARED
    few = FEW_AWAY if recipe.offload_activations == "checkpoints" else few
    chosen = chosen_blocks(model, recipe.checkpoint, field="checkpoint") if _is_first(recipe.checkpoint) else None
    rows = [
        row
        for path, container in model.named_modules()
        if path in containers and isinstance(container, _CONTAINERS)
        for first, count in rows_alike(list(container.children()))
        for row in _parted(EqualBlocks(container, path, first, count, few), chosen)
    ]
    longest = max(rows, key=lambda row: row.count, default=None)
    if longest is None or not longest.worth or _used_elsewhere(model, longest.container):
        return None
    if ranks > 1 and recipe.shard == "none" and not _bucket_each(longest, recipe, settings):
        return None
    return longest


def _bucket_each(row: EqualBlocks, recipe: Recipe, settings: Mapping[str, Any]) -> bool:
    """Whether gradients that are added up in buckets are packed alike in each block.

    A weight that fills a bucket alone, in any format, ends the one before it and has its own to itself; so what lies in
    buckets behind it is what the block alone decides, where all of them are of one format.
    """
    if recipe.adapter != "none" or recipe.tensor_parallel > 1 or settings.get("freeze"):
        return False
    weights = [weight for weight in row.modules[0].parameters() if weight.requires_grad]
    fills = any(weight.numel() * _LEAST_BYTES > BUCKET_BYTES for weight in weights)
    return fills and len({weight.dtype for weight in weights}) == 1


def _parted(row: EqualBlocks, chosen: Mapping[str, nn.Module] | None) -> Iterator[EqualBlocks]:
    """The row, or its first blocks and its last ones where only some are among the first K of the model (`chosen`)."""
    if chosen is None:
        yield row
        return
    among = {id(block) for block in chosen.values()}
    first = row.first
    for inside, group in itertools.groupby(id(block) in among for block in row.modules):
        count = len(list(group))
        counted = len(chosen) if inside else None
        yield dataclasses.replace(row, first=first, count=count, beside=row.count - count, counted=counted)
        first += count


def _is_first(checkpoint: str | tuple[str, ...]) -> bool:
    return isinstance(checkpoint, str) and checkpoint.startswith("blocks:")


def _chooses(recipe: Recipe, settings: Mapping[str, Any]) -> bool:
    """Whether a recipe or the settings mean some of the blocks and not others, but for the first K."""
    checkpoint = "none" if _is_first(recipe.checkpoint) else recipe.checkpoint
    named = [checkpoint, recipe.offload_activations, recipe.adapter_targets, settings.get("freeze")]
    words = [word for one in named for word in ((one,) if isinstance(one, str) else one or ())]
    return any(letter.isdigit() or letter in "[?" for word in words for letter in str(word))


def _used_elsewhere(model: nn.Module, container: nn.Module) -> bool:
    """Whether something else in the model holds the container too, or weights that lie in it."""
    inside, own = set(map(id, container.parameters())), set(map(id, container.modules()))
    others = [module for module in model.modules() if id(module) not in own]
    held = sum(child is container for module in others for child in module._modules.values())
    return held > 1 or any(id(one) in inside for module in others for one in module._parameters.values())


def recorded_by_few(blocks: EqualBlocks, record: Callable[[int, Chance], Recording]) -> Recording | None:
    """Returns the recording of the whole model from two short ones; None where it does not follow from them.

    `record`: records the model with a number of its alike blocks.
    """
    short: list[Recording] = []
    told: list[list[str]] = []
    chance = Chance()
    for kept in (blocks.few, blocks.few + 1):
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", SnugfitWarning)
                short.append(record(kept, chance))
        except Exception:  # the whole recording tells what is wrong, or nothing is
            return None
        messages = (str(one.message) for one in caught if issubclass(one.category, SnugfitWarning))
        told.append(list(dict.fromkeys(messages)))
    one, other = short
    # An answer that random numbers decide may be another one in each block.
    if chance.alternatives() or told[0] != told[1] or (one.answered, one.same_on) != (other.answered, other.same_on):
        return None
    try:
        expansion = Expansion(one.trace, other.trace, blocks.paths(blocks.few), blocks.paths(blocks.few + 1))
        trace = expansion.trace(blocks.paths(blocks.count))
    except NotAlike:
        return None
    for message in told[1]:
        warnings.warn(message, SnugfitWarning, stacklevel=2)
    return dataclasses.replace(other, trace=trace, blocks_left_out=blocks.count - blocks.few - 1)
