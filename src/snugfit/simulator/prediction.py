"""An estimate: what a recording says about memory and time, on one card or on many."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snugfit.contexts import ContextSource
from snugfit.devices import Device, device_named
from snugfit.fidelity import Fidelity
from snugfit.fields import as_data
from snugfit.json_files import json_text
from snugfit.recipe import Recipe
from snugfit.recording.allocator import AllocatorConfig
from snugfit.recording.anatomy import LiveTensor, Timeline, timeline
from snugfit.recording.block_profile import BlockProfile
from snugfit.recording.fragmentation import Fragmentation
from snugfit.recording.host_waits import HostWaits
from snugfit.recording.replays import Replays
from snugfit.recording.sources import Source
from snugfit.recording.tensor_bytes import TensorBytes
from snugfit.recording.trace import Trace
from snugfit.recording.uneven_sizes import UnevenSize
from snugfit.report.notebook import ShownAsCard
from snugfit.simulator.costs import Cost, check_priced, costs_of, read_prices

LARGEST = 10
"""How many of the largest tensors an estimate names."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFit:
    """Whether a run fits a card."""

    name: str
    """The card's name."""
    fits: bool
    """Whether the replay at the card's size goes through."""
    headroom_bytes: int | None
    """Bytes left over the smallest size that suffices; negative when it does not fit, None on a device without limit."""
    step_seconds: float | None
    """Predicted seconds of a steady step; None where no speed is known."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankNeeds:
    """What processes need that share a batch and hold equally much."""

    ranks: str
    """Their numbers, such as `0-6`."""
    peak_allocated_bytes: int
    """The most bytes in live tensors at a time, on each of them."""
    peak_reserved_bytes: int | None
    """The most bytes in segments of the caching allocator; None on cpu."""
    host_bytes: int
    """The most bytes that each of them has in host memory."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OnGpus:
    """What training needs on a number of GPUs."""

    gpus: int
    """GPUs of each machine."""
    nodes: int
    """Machines."""
    refusal: str | None
    """Why they cannot train this batch by this recipe; None where they can."""
    total_bytes: int | None = None
    """As of an estimate, of the fullest GPU."""
    host_bytes: int | None = None
    """Host memory of a machine, all its processes together."""
    devices: tuple[DeviceFit, ...] = ()
    """Every card that was asked for."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Estimate(ShownAsCard):
    """What a training run needs, predicted."""

    title: str
    """The model's name."""
    device: str
    """The card; `all` for every card of the table, the numbers then being those of compute capability 8.0."""
    batch_shape: str
    """The batch in words, such as `64 x 3 x 224 x 224`."""
    parameters: int
    """Parameters of the model, tied ones once."""
    peak_allocated_bytes: int
    """The most bytes in live tensors at a time; on CUDA as the caching allocator rounds them."""
    peak_reserved_bytes: int | None
    """The most bytes in segments of the caching allocator, on a card without limit; None on cpu."""
    context_bytes: int | None
    """What CUDA takes for itself; None for more than one card, and on cpu."""
    context_range_bytes: tuple[int, int] | None
    """The least and the most of it that was read."""
    context_source: ContextSource | None
    """Whether it was measured on this card, published for such cards, or assumed from the card's generation."""
    nccl_bytes: int | None
    """What NCCL takes for the groups of several GPUs; 0 for one, None where nobody has published it for such cards."""
    total_bytes: int
    """Reserved (on cpu allocated) context and NCCL, the last two counted 0 for more than one card."""
    host_bytes: int
    """The most bytes in host memory at a time: the model while it is built there, batches, what the recipe offloads; of
    all processes of a machine together."""
    anatomy_bytes: dict[str, int]
    """Category -> bytes at the peak; they add up to `peak_allocated_bytes`."""
    experts_bytes: dict[str, int]
    """What of each category belongs to the experts of a mixture; empty for a model without."""
    attention_kernels: dict[str, int]
    """Kernels of torch's scaled dot product attention that ran -> in how many modules; empty for attention that the model
    writes out by itself (eager), or without attention."""
    fragmentation_bytes: int
    """Bytes in segments that no tensor used at the peak."""
    rounding_bytes: int
    """How much of the peak is rounding up of sizes."""
    peak_phase: str
    """The phase in which the peak falls."""
    peak_step: int
    """The step in which it falls, from 0."""
    peak_operator: str
    """The operator that reaches it."""
    peak_module: str
    """The module in which that operator runs."""
    step_seconds: float | None
    """Predicted seconds of a steady step; None for more than one card, or where no speed is known."""
    communication_seconds: float | None
    """Predicted seconds of collectives in a steady step, those behind computation included; None as `step_seconds`."""
    exposed_communication_seconds: float | None
    """How much later the step ends for them."""
    flops: int
    """Floating-point operations of a steady step."""
    recipe: Recipe | None
    """How the step is held in memory; None for a hand-written step."""
    fidelity: Fidelity | None
    """How close that is to plain training; None for a hand-written step."""
    torch_version: str
    """The torch whose operators were recorded."""
    processor: str | None
    """The processor for which an estimate of `cpu` holds, with its instructions and threads; None for cards."""
    gpus: int
    """GPUs of each machine that share the batch; the bytes of the estimate are those of the fullest one."""
    nodes: int
    """Machines."""
    ranks: tuple[RankNeeds, ...]
    """What each process needs, the fullest first; empty for one GPU. Of more than 64, all are counted as the fullest."""
    devices: tuple[DeviceFit, ...]
    """Every card that was asked for."""
    largest: tuple[LiveTensor, ...]
    """The largest tensors alive at the peak."""
    sources: tuple[Source, ...]
    """Where memory comes from, what is alive at the peak first: module, line and category, equal blocks in one row."""
    blocks: tuple[BlockProfile, ...]
    """The blocks of the model."""
    answered: tuple[str, ...]
    """Questions about values that were answered although simulated tensors have none."""
    notes: tuple[str, ...]
    """What the simulation has to say beside, on stderr too: what is not looked at, what takes more later."""
    steps: int | None
    """How often a hand-written step was called; None for training by a recipe."""
    uneven_sizes: tuple[UnevenSize, ...]
    """Sizes that tensor cores of this card cannot load whole, and what they cost; empty for more than one card."""
    fragmentation: Fragmentation | None
    """Where a noticeable share of the reserved bytes is in no tensor: what would lower it."""
    host_waits: HostWaits | None
    """Where the host waits for the card in the middle of a step, and what it costs; None where it never does."""
    trace: Trace = dataclasses.field(repr=False, compare=False)
    """The recording."""
    costs: tuple[Cost, ...] = ()
    """Cards with a price, the cheapest that fits first; empty without prices (`priced`)."""
    batch_size: int | None = None
    """Samples of a step; None for a hand-written one."""
    by_gpus: tuple[OnGpus, ...] = ()
    """Each number of GPUs, where several were asked for; all else is of the first of them that can train this."""

    @property
    def _config(self) -> AllocatorConfig | None:
        return TensorBytes() if self.peak_reserved_bytes is None else None

    def fits(self, device: str | Device) -> bool:
        """Returns whether the run fits a card, by a replay at its size of the kernels that were recorded.

        Args:
            device: A card, or its name.

        Returns:
            Whether it goes through.

        Raises:
            InputError: For an unknown name.
        """
        card = device if isinstance(device, Device) else device_named(device)
        return Replays(self.trace, self._config).fits(card)[0]

    def smallest_bytes(self) -> int:
        """Returns the smallest memory, context apart, in which the run goes through."""
        return Replays(self.trace, self._config).smallest_bytes

    def priced(self, prices: Mapping[str, float], *, samples: int | None = None) -> Estimate:
        """Returns the estimate with what training costs.

        Args:
            prices: Name of a card, as in `devices` -> price of an hour, in any currency.
            samples: Samples of an epoch; None: only steps are priced.

        Returns:
            The estimate, `costs` filled in.

        Raises:
            InputError: A card is unknown or not among `devices`, or a price no number.
        """
        known = read_prices([f"{name}={price}" for name, price in prices.items()])
        check_priced(known, [device.name for device in self.devices])
        costs = costs_of(self.devices, known, batch_size=self.batch_size, samples=samples)
        return dataclasses.replace(self, costs=costs)

    def timeline(self, *, points: int = 1000) -> Timeline:
        """Returns live bytes over the run.

        Args:
            points: How many points at most.

        Returns:
            The timeline, by category.
        """
        return timeline(self.trace, self._config, points=points)

    def write_snapshot(self, path: str | Path) -> None:
        """Writes the predicted run in PyTorch's memory-snapshot format, for its usual viewer.

        Args:
            path: The file, a pickle.
        """
        from snugfit.recording.snapshot import write_snapshot

        write_snapshot(path, self.trace, self._config)

    def to_mapping(self) -> dict[str, Any]:
        """Returns the estimate as plain data; of the recording, a timeline of a few hundred points."""
        from snugfit.report.estimate_card import estimate_drawing
        from snugfit.report.timeline import timeline_to_plain

        plain: dict[str, Any] = as_data(self, without=("trace",))
        return {**plain, "timeline": timeline_to_plain(estimate_drawing(self))}

    def to_json(self) -> str:
        """Returns the estimate as one JSON document."""
        return json_text(self.to_mapping())

    def card(self) -> str:
        """Returns the estimate as text for a console."""
        from snugfit.report.estimate_card import estimate_card

        return estimate_card(self)

    def __str__(self) -> str:
        return self.card()
