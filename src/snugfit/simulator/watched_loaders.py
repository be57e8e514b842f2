"""The loaders of a training script that is watched: what they give, and when they end."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import linecache
import re
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from snugfit.attributes import Change
from snugfit.simulator.kept_results import LoaderPass
from snugfit.simulator.script import EnoughSeen
from snugfit.simulator.script_seen import is_below, is_own, outwards
from snugfit.simulator.widest_samples import drawn_by, widest_batches

if TYPE_CHECKING:
    from snugfit.simulator.watched_script import WatchedScript

BATCHES = 3
"""Batches that a loader gives once the steps were seen: accelerate's ask for one ahead, and what is kept shows in two."""
MOST_PASSES = 8
"""Passes through a data set after which no further step is waited for."""
_GROWTH = 1.05
"""How much larger batches of another loader are that grow: those of ragged data differ a little."""
_NEXT = re.compile(r"\b(next|__next__)\s*\(")


class WatchedLoaders:
    """The loaders of a run of a script."""

    def __init__(self, watched: WatchedScript) -> None:
        """Has seen none."""
        self._watched = watched
        self.one_ahead = self.ended_early = False
        """Whether the last one that was begun was ended early, so that a batch may be to come that was asked for ahead; and
        whether one was at all."""
        self.read_widths = False
        """Whether samples are read now to see how wide they are, and not to train."""
        self.branch_waits: Callable[[], bool] = lambda: False
        """Whether a branch that is taken every so many steps is due, and stands before the step."""
        self.kept_later_bytes = 0
        """The most that batches which are left out would keep on the device, beside what is counted."""
        self.passes: Counter[int] = Counter()
        """Passes through a data set since the last step."""
        self.trained = False
        """Whether any was read where what is computed may be differentiated."""
        self._begun: tuple[weakref.ref[Any], int] | None = None
        """The loader that was begun last, and how many numbers its first batch has, until a backward pass follows."""
        self._given: weakref.WeakKeyDictionary[Any, _Given] = weakref.WeakKeyDictionary()
        """Of loaders that are trained on."""
        self._most_elements = 0
        """In a first batch of a loader that is trained on."""
        self._widest: dict[int, tuple[weakref.ref[Any], dict[Any, tuple[list[list[int]], str]]]] = {}
        """Identity of what draws (a sampler of its own, or the data set if all is drawn) -> itself, and what it has."""

    def are_trained_on(self) -> None:
        """Notes of the loader begun last that a backward pass follows; says where its batches have grown: images, say."""
        if self._begun is None:
            return
        (ref, count), self._begun = self._begun, None
        loader, before = ref(), self._most_elements
        if loader is not None:
            self._given[loader] = _Given()
        if self._watched.steps and before and count > before * _GROWTH:
            self._watched.note(
                f"batches grow from one loader to the next ({before} numbers in one, {count} in a later one): what is "
                "trained on still later ones may take more."
            )
        self._most_elements = max(before, count)

    def stepped(self) -> None:
        """Takes down how many batches were given for a step that was taken."""
        self.passes.clear()
        for given in self._given.values():
            if given.number > given.at_step:  # of several optimizers, the first
                given.for_step, given.at_step = given.number - given.at_step, given.number

    def ending_early(self) -> list[Change]:
        """Returns what makes loaders read in this process, give the widest batches and end when the steps were seen."""
        from torch.utils.data import DataLoader

        make, each = DataLoader.__init__, DataLoader.__iter__
        _, *names = inspect.signature(make).parameters

        @functools.wraps(make)  # Lightning makes loaders anew, with a sampler for each process, by what it reads there
        def made(loader: Any, *args: Any, **settings: Any) -> None:
            alone = {"num_workers": 0, "timeout": 0, "prefetch_factor": None, "persistent_workers": False}
            given = dict(zip(names, args, strict=False))
            make(loader, **{**given, **settings, **alone, "multiprocessing_context": None})

        return [
            (DataLoader, "__init__", made),
            (DataLoader, "__iter__", lambda loader: _Batches(loader, self._until_enough(loader, each(loader)))),
        ]

    def followed(self) -> list[Change]:
        """Returns what takes down whole passes through loaders."""
        from torch.utils.data import DataLoader

        each = DataLoader.__iter__
        return [(DataLoader, "__iter__", lambda loader: self._pass_through(loader, each(loader)))]

    def _until_enough(self, loader: Any, batches: Any) -> Iterator[Any]:
        from snugfit.private_torch import give_numbers

        self.one_ahead = False
        self.passes[id(loader.dataset)] += 1
        if self._watched.enough and self.passes[id(loader.dataset)] > MOST_PASSES:  # no step comes of so few batches
            raise EnoughSeen
        widest, said = self._widest_of(loader)
        if said:
            watched = self._watched  # by turns of steps: those after the first hold optimizer state and all gradients
            give_numbers(batches, lambda own: _as_many(widest[(watched.steps + 1) % len(widest)], len(own)))
            self._watched.note(said if trains() else f"in evaluation, {said}")
        yield from self._pass_through(loader, batches, may_end=True)

    def _pass_through(self, loader: Any, batches: Any, may_end: bool = False) -> Iterator[Any]:
        from snugfit.training.fallbacks import elements

        watched = self._watched
        begun, goes_on = watched.enough, False
        seen = None if watched.recorder is None else LoaderPass(loader, watched.recorder)
        number = -1
        for batch in batches:  # `enumerate` would hold it
            number, size = number + 1, elements(batch)
            if not number and trains() and loader not in self._given:
                self.trained, self._begun = True, (weakref.ref(loader), size)
            ends = may_end and number >= BATCHES and (begun or watched.enough or not trains())
            given = self._given.get(loader)
            if given is not None:  # what was begun in between is evaluated on
                self._begun = None
            if ends and not begun and given is not None and given.for_step:
                # A batch that is asked for ahead, as accelerate does, is followed by the others of its step: a trainer
                # updates at the end of its data, and evaluates without gradients.
                ends = not number % given.for_step
            if ends and not (seen is not None and seen.goes_on()) and not _asked_by_next():
                self.one_ahead = self.ended_early = True
                if goes_on or not self.branch_waits():
                    break
                goes_on = True  # the step of that batch is left out, as it is of one that was asked for ahead
            if given is not None:
                given.number += 1
            out = [batch]
            del batch  # only who asked for it holds it, as of torch's loaders
            yield out.pop()
            if seen is not None:
                seen.processed(size, watched.steps)
        if seen is not None and (said := seen.end()):
            watched.note(said)
            self.kept_later_bytes = max(self.kept_later_bytes, seen.later_bytes)

    def _widest_of(self, loader: Any) -> tuple[list[list[int]], str]:
        """The samples of the widest batches of a loader, read once for all loaders that draw as many of the same."""
        drawn = drawn_by(loader)
        if drawn is None:
            return [], ""
        size, sampler, in_order = drawn
        how = size, id(loader.dataset), in_order
        self.read_widths = True
        try:
            draws = loader.dataset if sampler is None else sampler
            held, known = self._widest.get(id(draws), (None, {}))
            if held is None or held() is not draws:  # by identity: a tensor may be a data set, and is equal to none
                known = {}
                self._widest[id(draws)] = weakref.ref(draws), known
            if how not in known:
                known[how] = widest_batches(loader)
            return known[how]
        except TypeError:  # a list, say, of which there are no weak references
            return widest_batches(loader)
        finally:
            self.read_widths = False


def _as_many(numbers: list[int], count: int) -> list[int]:
    return list(itertools.islice(itertools.cycle(numbers), count))


def trains() -> bool:
    """Returns whether what is computed now may be differentiated."""
    import torch

    return torch.is_grad_enabled()


def _asked_by_next() -> bool:
    """Returns whether a person's own code asks for a batch by `next`, which fails at an end where a loop goes on."""
    for frame in outwards(sys._getframe(1)):
        file = frame.f_code.co_filename
        if is_below(file) or not is_own(frame):
            continue
        if _NEXT.search(linecache.getline(file, frame.f_lineno)):
            return True
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:  # whose reader may ask so
            return False
    return False


@dataclasses.dataclass
class _Given:
    """Batches that a loader has given: how many, how many at the last step, and how many for a step."""

    number: int = 0
    at_step: int = 0
    for_step: int = 0


class _Batches:
    """A pass through a loader, which says how long it is, as torch's does."""

    def __init__(self, loader: Any, batches: Iterator[Any]) -> None:
        self._loader, self._batches = loader, batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._loader)
