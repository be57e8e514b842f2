"""One candidate, simulated: what a recipe needs and how long it takes. The part that runs in a worker, and the pool of it.

Every number of a plan comes from here: the same step on fake tensors, replayed for the smallest memory in which it goes
through (cached segments given back under pressure), and timed by the clock of the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from snugfit.device_kinds import CPU
from snugfit.devices import Device
from snugfit.errors import CannotSimulateError, InputError
from snugfit.fake_device.personality import Personality
from snugfit.machine import usable_processors
from snugfit.nccl import among
from snugfit.planner.profile import StepProfile, profile
from snugfit.recipe import Recipe
from snugfit.recording.clock import Timing, clock, issue_seconds
from snugfit.recording.cpu_clock import HostSpeeds, cpu_clock, cpu_run_seconds
from snugfit.recording.host_memory import machine_host_bytes
from snugfit.recording.kernel_times import run_seconds
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.recording import Recording
from snugfit.recording.replays import Replays
from snugfit.recording.tensor_bytes import TensorBytes
from snugfit.report.waiting import waiting_for
from snugfit.report.words import recipe_in_words
from snugfit.simulator.subjects import Subject
from snugfit.techniques.compile import eager_of
from snugfit.techniques.shard import groups_of
from snugfit.workers.pool import Pool

AT_ONCE = 2
"""Recipes that a search has simulated together before it decides anew, on any machine, so that plans do not depend on it."""
WORKERS = min(max(usable_processors(), AT_ONCE), 4)
"""Processes that simulate; each takes about a gigabyte."""
NEED_WITHIN = 0.002
"""Share by which the memory that a recipe needs may be overstated; half as many replays find it then."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where training is to run, with its speeds."""

    card: Device
    """Row of the table."""
    personality: Personality
    """What is simulated."""
    speeds: HostSpeeds | None = None
    """Measured speeds, where it is a CPU."""

    @property
    def on_cpu(self) -> bool:
        """Whether training runs on the CPU."""
        return self.personality.kind == "cpu"

    def timing(self, recorded: Recording) -> Timing | None:
        """Returns the mean timing of the steady steps of a recording, each batch once."""
        trace, speeds = recorded.trace, self.speeds
        if speeds is None:
            return recorded.timing(lambda step: clock(trace, self.card, step=step))
        return recorded.timing(lambda step: cpu_clock(trace, speeds, step=step))

    def seconds_of(self, run: OperatorRun) -> float:
        """Returns the seconds for which an operator keeps the busier of card and host busy."""
        if self.speeds is not None:
            return cpu_run_seconds(run, self.speeds)
        return max(run_seconds(run, self.card) or 0.0, issue_seconds(run, self.card))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What the simulation of a recipe showed."""

    recipe: Recipe
    """The recipe."""
    need_bytes: int
    """The smallest memory in which it goes through, with what NCCL is known to take and without CUDA's context; on cpu with
    what is kept in the host pool."""
    total_bytes: int
    """The most that it reserves where memory is not short, and CUDA's context; on cpu what its tensors take, with the host
    pool."""
    allocated_bytes: int
    """The most bytes of its tensors."""
    host_bytes: int
    """The most bytes in host memory."""
    build_decides: bool
    """Whether the most memory is taken while the model is built."""
    seconds: float
    """Predicted seconds of a steady step."""
    timing: Timing
    """Its parts."""
    profile: StepProfile
    """What each block needs."""
    recorded: Recording
    """The recording."""
    as_it_runs: bool = True
    """Whether the very step was simulated; False where the recipe compiles and its eager step stood in."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A recipe that cannot be carried out, or not be simulated."""

    reason: str
    """One sentence or more."""
    fields: tuple[str, ...] = ()
    """Fields of the recipe that it is about; none where nobody knows."""


def probe(
    subject: Subject,
    recipe: Recipe,
    place: Place,
    *,
    compiled: bool = False,
    most_weight_bytes: int | None = None,
    really: bool = False,
    may_run: bool = True,
) -> Any:
    """Simulates a recipe and returns what it needs and how long it takes; runs in a worker.

    `compiled`: whether a recipe that compiles is compiled, which takes minutes; otherwise its eager step stands for it.
    `most_weight_bytes`: with more than these nothing is simulated, and `TooHeavyError` says so; None: no limit.
    `really`: whether a step that failed is tried for real in place of being simulated, to tell whose fault it is.
    `may_run`: whether that is worth it; not for one of many recipes.
    """
    eager = eager_of(recipe)
    if really:
        from snugfit.simulator.real_run import NotTried, Tried

        none = Tried(error=NotTried("it is one of many recipes of a plan"))
        return subject.record(eager, place.personality, really=True) if may_run else none
    how = {} if most_weight_bytes is None else {"most_weight_bytes": most_weight_bytes}
    recorded = subject.record(recipe if compiled else eager, place.personality, **how)
    return measured(recorded, recipe, place, as_it_runs=compiled or recipe == eager)


def measured(recorded: Recording, recipe: Recipe, place: Place, *, as_it_runs: bool) -> Probe:
    """Returns what a recording shows on a device: replayed and timed, nothing recorded."""
    config = TensorBytes() if place.on_cpu else None
    replays = Replays(recorded.trace, config, within=NEED_WITHIN)
    played = replays.unlimited
    ranks = 1 if recorded.workload is None else recorded.workload.ranks
    timing = place.timing(recorded)
    if timing is None:
        raise no_speeds(place.card, ranks)
    # A budget on a CPU is of the process, whose memory the host pool is, too.
    held = played.peak_with_host_bytes if place.on_cpu else played.peak_reserved_bytes
    nccl_bytes = among(place.card, groups_of(recipe, ranks)).nccl_bytes or 0
    return Probe(
        recipe=recipe,
        need_bytes=replays.smallest_bytes + nccl_bytes,
        total_bytes=held + place.card.context_bytes + nccl_bytes,
        allocated_bytes=played.peak_allocated_bytes,
        host_bytes=machine_host_bytes(recorded),
        build_decides=played.peak_phase == "build",
        seconds=timing.step_seconds,
        timing=timing,
        profile=profile(recorded.trace, recorded.block_names, place.seconds_of),
        recorded=recorded,
        as_it_runs=as_it_runs,
    )


def no_speeds(card: Device, ranks: int = 1) -> InputError:
    """Returns the error for a card whose speeds are not known, or those of the links between several."""
    what = card.name if ranks == 1 else f"{card.name} and the links between {ranks} of them"
    return InputError(
        f"no speeds are known for {what}, so recipes cannot be compared by time. Name a card that has them "
        "(snugfit devices), or cpu."
    )


class Simulations:
    """Simulates each recipe once; several at a time, except on a processor."""

    def __init__(
        self, subject: Subject, place: Place, pool: Pool | None = None, before: Simulations | None = None
    ) -> None:
        """Has simulated nothing yet; workers are its own if `pool` is None, and `close` ends them.

        `before`: what the same training was simulated by before, for this device or another; it is asked first, and what
        it has counts as simulated only where it is asked for here.
        """
        self.subject = subject
        self.place = place
        self.probes: dict[Recipe, Probe] = {}
        self.refusals: dict[Recipe, Refusal] = {}
        self.most_weight_bytes: int | None = None
        self._before: dict[Recipe, tuple[Place, Probe | Refusal]] = {}
        if before is not None:
            self._before |= before._before
            self._before |= {recipe: (before.place, one) for recipe, one in before.probes.items()}
            self._before |= {recipe: (before.place, one) for recipe, one in before.refusals.items()}
        # A processor's operators are timed while they are simulated, and two that are timed at once slow each other.
        workers = 1 if place.personality.kind == CPU else WORKERS
        self._pool = pool or Pool(workers)
        self._owns_pool = pool is None
        if self._owns_pool:
            self._pool.start(workers)
        self._threads = ThreadPoolExecutor(workers)
        self._looks_ahead = self._owns_pool and workers > 1
        self._ahead: dict[Recipe, Future[Probe | Refusal]] = {}
        """What was begun before it was asked for; it counts from then on."""

    def close(self) -> None:
        """Ends the workers it started."""
        self._threads.shutdown(wait=not self._owns_pool, cancel_futures=True)
        if self._owns_pool:
            self._pool.close()

    def simulate(self, recipes: Iterable[Recipe], ahead: Iterable[Recipe] = ()) -> None:
        """Simulates the recipes that were not simulated before; an impossible one becomes a `Refusal`.

        `ahead`: what will likely be asked for next, for workers that have nothing else to do. What a plan is does not depend
        on it.
        """
        wanted = self._unknown(recipes)
        if not wanted:
            return
        self._ahead = {recipe: begun for recipe, begun in self._ahead.items() if not begun.cancel()}
        asked = {recipe: self._ahead.pop(recipe) if recipe in self._ahead else self._begun(recipe) for recipe in wanted}
        for recipe in self._unknown(ahead) if self._looks_ahead else ():
            if recipe not in asked and recipe not in self._ahead:
                self._ahead[recipe] = self._begun(recipe)
        for recipe, begun in asked.items():
            found = begun.result()
            if isinstance(found, Probe):
                self.probes[recipe] = found
            else:
                self.refusals[recipe] = found

    def _begun(self, recipe: Recipe) -> Future[Probe | Refusal]:
        return self._threads.submit(self._try, recipe)

    def _unknown(self, recipes: Iterable[Recipe]) -> list[Recipe]:
        return [one for one in dict.fromkeys(recipes) if one not in self.probes and one not in self.refusals]

    def need(self, recipe: Recipe) -> Probe:
        """Returns the probe of a recipe that must be possible (plain training with the pins), or raises."""
        if recipe not in self.probes:
            known = self._known(recipe)
            self.probes[recipe] = known if isinstance(known, Probe) else self._simulated(recipe, may_run=True)
        return self.probes[recipe]

    def as_it_runs(self, found: Probe) -> Probe:
        """Simulates a recipe with its step compiled if it says so, and replaces its eager probe."""
        if not found.as_it_runs:
            found = self.probes[found.recipe] = self._simulated(found.recipe, compiled=True)
        return found

    @property
    def operators(self) -> int:
        """Operators simulated so far, the measure of effort."""
        return sum(len(probe.recorded.trace.runs) for probe in self.probes.values())

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a function in a worker."""
        return self._pool.call(function, *arguments)

    def _known(self, recipe: Recipe) -> Probe | Refusal | None:
        """What was simulated before; a recording that holds for this card too is replayed and timed on it."""
        place, known = self._before.get(recipe, (self.place, None))
        if known is None or place == self.place:
            return known
        here = self.place.personality
        if isinstance(known, Refusal):
            return known if place.personality == here else None
        if place.personality != here and not (here.is_card and here.capability in known.recorded.same_on):
            return None
        return measured(known.recorded.on(here.capability), recipe, self.place, as_it_runs=known.as_it_runs)

    def _simulated(self, recipe: Recipe, *, compiled: bool = False, may_run: bool = False) -> Probe:
        doing = f"a training step of {self.subject.title} by the recipe {recipe_in_words(recipe)}"
        how: dict[str, Any] = {"compiled": compiled, "most_weight_bytes": self.most_weight_bytes, "may_run": may_run}
        with waiting_for(recipe_in_words(recipe)):
            found: Probe = self._pool.call(probe, self.subject, recipe, self.place, **how, doing=doing)
        return found

    def _try(self, recipe: Recipe) -> Probe | Refusal:
        known = self._known(recipe)
        if known is not None:
            return known
        try:
            return self._simulated(recipe)
        except (InputError, CannotSimulateError) as error:
            return Refusal(reason=" ".join(str(error).split()), fields=getattr(error, "fields", ()))
