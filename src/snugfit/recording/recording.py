"""A recording: the trace of a run, what was found out on the way, and what is known of model and batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from snugfit.recording.clock import Timing
from snugfit.recording.generations import Capability, on_generation
from snugfit.recording.trace import Trace
from snugfit.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """What one run did, and what is known of it: the parts of the model, if it was one."""

    trace: Trace
    """Every storage and operator."""
    answered: tuple[str, ...] = ()
    """Questions about values that were answered although fake tensors have none."""
    warnings: tuple[str, ...] = ()
    """What the simulated code warned of."""
    kept_later_bytes: int = 0
    """What a script would keep on the device of the batches behind those that were recorded, as far as that is known."""
    torch_version: str = ""
    """The torch whose operators were recorded."""
    processor: str | None = None
    """The processor on which a CPU run was asked what operators take; None for a card."""
    same_on: tuple[Capability, ...] = ()
    """Compute capabilities on which the recording is the same, but for workspaces of libraries."""
    workload: Workload | None = None
    """What is learned, with the traits of the model; None for a hand-written step."""
    batch_shape: str = ""
    """The batch in words, such as `64 x 3 x 224 x 224`."""
    batches: int = 1
    """How many batches the steps go through before they repeat."""
    weight_bytes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Module that owns parameters -> their bytes as they were built; tied ones once."""
    parameters: int = 0
    """Number of parameters, tied ones once."""
    expert_modules: tuple[str, ...] = ()
    """Modules that hold the experts of a mixture."""
    block_names: tuple[str, ...] = ()
    """Repeated blocks of the model, in its order."""
    uncalled_blocks: bool = False
    """Whether the recipe acts on blocks when they are called, and the model called none of those."""
    blocks_left_out: int = 0
    """Blocks that were not recorded: what they do follows from others like them."""
    steps: int | None = None
    """Calls of a hand-written step that were recorded; None for training by a recipe."""
    alike_ranks: tuple[tuple[int, ...], ...] = ()
    """Processes, by those that hold and compute the same, the fullest first; empty where one trains alone."""
    one_builds: bool = False
    """Whether of several processes only the first builds the model."""
    switchable: tuple[str, ...] = ()
    """Fields of the recipe, of `attention` and `inplace`, that find something to switch in the model."""

    def on(self, capability: Capability) -> Recording:
        """Returns the recording on another card, of one of the capabilities in `same_on`."""
        trace = on_generation(self.trace, capability)
        return self if trace is self.trace else dataclasses.replace(self, trace=trace)

    @property
    def steady_steps(self) -> range:
        """The steps that times are taken from: those after the first, each batch once; else the only one."""
        last = self.batches + 1 if self.steps is None else self.steps
        return range(min(1, last - 1), last)

    def timing(self, clocked: Callable[[int], Timing | None]) -> Timing | None:
        """Returns the mean timing of the steady steps; None where the clock knows no speed."""
        timings = [clocked(step) for step in self.steady_steps]
        known = [one for one in timings if one is not None]
        return Timing.mean(known) if len(known) == len(timings) else None
