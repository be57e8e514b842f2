"""One candidate, simulated: what a recipe needs and how long it takes. The part that runs in a worker, and the pool of it.

Every number of a plan comes from here: the same step on fake tensors, replayed for the smallest memory in which it goes
through (cached segments given back under pressure), and timed by the clock of the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from snugfit.devices import Device
from snugfit.errors import CannotSimulateError, InputError
from snugfit.planner.profile import Profile, profile
from snugfit.recipe import Recipe
from snugfit.recording import replay as replays
from snugfit.recording.clock import HOST_LAUNCH_SECONDS, HOST_OPERATOR_SECONDS, Timing, clock
from snugfit.recording.cpu_clock import HostSpeeds, cpu_clock, cpu_run_seconds
from snugfit.recording.kernel_times import run_seconds
from snugfit.recording.recording import Recording
from snugfit.recording.tensor_bytes import TensorBytes
from snugfit.recording.trace import OperatorRun
from snugfit.simulator.request import Kind
from snugfit.workers.pool import Pool

WORKERS = 2
NEED_WITHIN = 0.002
"""How much too large the memory that a recipe needs may be said; half as many replays find it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What is trained: a function that records it by a recipe on a kind of device, and its other arguments."""

    record: Callable[[tuple[Any, ...], Recipe, Kind], Recording]
    """Called in a worker."""
    arguments: tuple[Any, ...]
    """Given to `record` first."""
    title: str
    """The model's name."""
    built: bool = False
    """Whether the model stands already, so that no plan can say where it is built."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where training is to run, with its speeds."""

    card: Device
    """Row of the table."""
    kind: Kind
    """What is simulated."""
    speeds: HostSpeeds | None = None
    """Measured speeds, where it is a CPU."""

    @property
    def on_cpu(self) -> bool:
        """Whether training runs on the CPU."""
        return self.kind[0] == "cpu"

    def timing(self, recorded: Recording) -> Timing | None:
        """Returns the mean timing of the steady steps, each batch once.

        Args:
            recorded: A recording on this kind of device.
        """
        timings: list[Timing] = []
        for step in range(1, recorded.batches + 1):
            one = (
                clock(recorded.trace, self.card, step=step)
                if self.speeds is None
                else cpu_clock(recorded.trace, self.speeds, step=step)
            )
            if one is None:
                return None
            timings.append(one)
        count = len(timings)
        phases = {name for one in timings for name in one.phase_seconds}
        return Timing(
            step_seconds=sum(one.step_seconds for one in timings) / count,
            host_seconds=sum(one.host_seconds for one in timings) / count,
            device_seconds=sum(one.device_seconds for one in timings) / count,
            link_seconds=sum(one.link_seconds for one in timings) / count,
            flops=sum(one.flops for one in timings) // count,
            phase_seconds={name: sum(one.phase_seconds.get(name, 0.0) for one in timings) / count for name in phases},
        )

    def seconds_of(self, run: OperatorRun) -> float:
        """Returns how long an operator keeps the busier of card and host.

        Args:
            run: The operator.
        """
        if self.speeds is not None:
            return cpu_run_seconds(run, self.speeds)
        return max(run_seconds(run, self.card) or 0.0, HOST_OPERATOR_SECONDS + run.kernels * HOST_LAUNCH_SECONDS)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What the simulation of a recipe showed."""

    recipe: Recipe
    """The recipe."""
    need_bytes: int
    """The smallest memory in which it goes through, CUDA's context apart."""
    total_bytes: int
    """The most that it reserves where memory is not short (on cpu: that its tensors take), and CUDA's context."""
    host_bytes: int
    """The most bytes in host memory."""
    build_decides: bool
    """Whether the most memory is taken while the model is built."""
    seconds: float
    """Predicted seconds of a steady step."""
    timing: Timing
    """Its parts."""
    profile: Profile
    """What each block needs."""
    recorded: Recording
    """The recording."""

    @property
    def operators(self) -> int:
        """Operators that were simulated: the measure of how long the simulation took."""
        return len(self.recorded.trace.runs)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A recipe that cannot be carried out, or not be simulated."""

    reason: str
    """One sentence or more."""
    fields: tuple[str, ...] = ()
    """Fields of the recipe that it is about; none where nobody knows."""


def probe(subject: Subject, recipe: Recipe, place: Place) -> Probe:
    """Simulates a recipe; runs in a worker.

    Args:
        subject: What is trained.
        recipe: How the step is held in memory.
        place: Where.

    Returns:
        What it needs and how long it takes.

    Raises:
        InputError: The recipe cannot be carried out, or no speed of the device is known.
        CannotSimulateError: Something needs values.
    """
    recorded = subject.record(subject.arguments, uncompiled(recipe), place.kind)
    config = TensorBytes() if place.on_cpu else None
    played = replays.replay(recorded.trace, config)
    timing = place.timing(recorded)
    if timing is None:
        raise InputError(
            f"no speeds are known for {place.card.name}, so recipes cannot be compared by time. Name a card that has them "
            "(snugfit devices), or cpu."
        )
    held = played.peak_allocated_bytes if place.on_cpu else played.peak_reserved_bytes
    need = (
        held
        if place.on_cpu
        else replays.smallest_capacity(recorded.trace, config, unlimited=played, within=NEED_WITHIN)
    )
    return Probe(
        recipe=recipe,
        need_bytes=need,
        total_bytes=held + (place.card.context_bytes or 0),
        host_bytes=played.host_peak_bytes,
        build_decides=played.peak_phase == "build",
        seconds=timing.step_seconds,
        timing=timing,
        profile=profile(recorded.trace, recorded.block_names, place.seconds_of),
        recorded=recorded,
    )


def uncompiled(recipe: Recipe) -> Recipe:
    """Returns a recipe as it is simulated: operators one by one, which a compiler would fuse.

    Args:
        recipe: Any recipe.
    """
    return recipe if recipe.compile == "none" else recipe.replace(compile="none", compile_memory_budget=None)


class Laboratory:
    """Simulates recipes, several at a time, each once."""

    def __init__(self, subject: Subject, place: Place, pool: Pool | None = None) -> None:
        """Starts empty.

        Args:
            subject: What is trained.
            place: Where.
            pool: Workers; None: two of its own, which `close` ends.
        """
        self.subject = subject
        self.place = place
        self.probes: dict[Recipe, Probe] = {}
        self.refusals: dict[Recipe, Refusal] = {}
        self.operators = 0
        self._own = Pool(WORKERS) if pool is None else None
        self._pool = pool or self._own
        if self._own is not None:
            self._own.start(WORKERS)
        self._threads = ThreadPoolExecutor(WORKERS)

    def close(self) -> None:
        """Ends the workers it started."""
        self._threads.shutdown(cancel_futures=True)
        if self._own is not None:
            self._own.close()

    def look(self, recipes: Iterable[Recipe]) -> None:
        """Simulates recipes that were not simulated before; what cannot be carried out becomes a refusal.

        Args:
            recipes: Candidates.
        """
        wanted = [r for r in dict.fromkeys(recipes) if r not in self.probes and r not in self.refusals]
        for recipe, found in zip(wanted, self._threads.map(self._try, wanted), strict=True):
            if isinstance(found, Probe):
                self.probes[recipe] = found
                self.operators += found.operators
            else:
                self.refusals[recipe] = found

    def need(self, recipe: Recipe) -> Probe:
        """Returns the probe of a recipe that must be possible.

        Args:
            recipe: Such as plain training with the pinned fields.

        Raises:
            InputError: It cannot be carried out.
            CannotSimulateError: It needs values.
        """
        if recipe not in self.probes:
            assert self._pool is not None
            found = self._pool.call(probe, self.subject, recipe, self.place, doing=self._doing(recipe))
            self.probes[recipe] = found
            self.operators += found.operators
        return self.probes[recipe]

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a function in a worker.

        Args:
            function: What to run.
            *arguments: Its arguments.
        """
        assert self._pool is not None
        return self._pool.call(function, *arguments)

    def _doing(self, recipe: Recipe) -> str:
        changed = ", ".join(f"{name}={value}" for name, value in recipe.to_mapping(defaults=False).items())
        return f"a training step of {self.subject.title} by the recipe {changed or 'plain'}"

    def _try(self, recipe: Recipe) -> Probe | Refusal:
        assert self._pool is not None
        try:
            return self._pool.call(probe, self.subject, recipe, self.place, doing=self._doing(recipe))
        except (InputError, CannotSimulateError) as error:
            return Refusal(reason=" ".join(str(error).split()), fields=getattr(error, "fields", ()))
