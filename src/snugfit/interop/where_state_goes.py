"""Where weights, gradients and optimizer state should be: on each GPU, shared out, on the host, or on NVMe drives.

The guide's decision tree, answered for one model by numbers: a model that fits one GPU with its batch needs no ZeRO; one
that does not is shared out; what is still too much goes to the host, and to drives only where the host is too small as well.
Memory and time of the first three are simulated (by FSDP2, which cuts as ZeRO 3 does). Drives are not: what a step moves
over them is counted from what weights and state take, and divided by what they carry at best.

Source: Hugging Face's guide to training on one GPU ("DeepSpeed ZeRO"); Rajbhandari et al., ZeRO-Infinity, 2021
(arXiv:2104.07857), for what is read and written in a step.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from snugfit.errors import InputError
from snugfit.fields import as_data
from snugfit.process_memory import free_host_bytes
from snugfit.recipe import Recipe
from snugfit.report.console import card, table
from snugfit.run import Run
from snugfit.simulator.estimate import cards_of, estimate_named
from snugfit.simulator.prediction import Estimate
from snugfit.simulator.request import NamedModel, build_named
from snugfit.units import format_bytes, format_seconds
from snugfit.workload import Workload

NVME_BYTES_PER_SECOND = 7_880_000_000
"""Four lanes of PCIe 4.0, 16 GT/s each, 128b/130b coded (PCI-SIG base specification): what one drive carries at most."""
_ALL = 10**7
"""Points of a timeline that leave no event out."""
_WORTH = 0.1
"""Share of a step beyond which drives are said to cost something."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StatePlace:
    """One place for weights and state."""

    name: str
    """On each GPU, shared out, on the host, on NVMe."""
    config: str
    """What the config says for it."""
    gpu_bytes: int
    """What the fullest GPU needs."""
    host_bytes: int | None
    """Host memory of a machine; None of drives: DeepSpeed's buffers, by its settings."""
    fits: bool
    """Whether GPU and host have as much."""
    step_seconds: float | None
    """A step: predicted, on NVMe the least that it can be; None where no speed is known."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """All of them, and the first that will do."""

    title: str
    """Model, GPUs and memory, in words."""
    places: tuple[StatePlace, ...]
    """From the fastest to the one that holds most."""
    chosen: str | None
    """Name of the first that fits; None where none does."""
    verdict: str
    """What to do, and whether drives are worth it, in words."""
    state_bytes: int
    """Weights, gradients and optimizer state of the whole model."""
    nvme_step_bytes: int
    """What a machine reads and writes in a step with all of that on its drives."""
    largest_tensor: int | None
    """Elements of the largest weight; None where nobody asked."""

    def to_mapping(self) -> dict[str, Any]:
        """Returns plain data."""
        plain: dict[str, Any] = as_data(self)
        return plain

    def __str__(self) -> str:
        rows = [("", "config", "GPU", "host", "a step", "fits")]
        for number, place in enumerate(self.places, 1):
            least = "at least " if place is self.places[-1] else ""
            seconds = "-" if place.step_seconds is None else least + format_seconds(place.step_seconds)
            fits = "no" if not place.fits else "yes  <- here" if place.name == self.chosen else "yes"
            host = "buffers" if place.host_bytes is None else format_bytes(place.host_bytes)
            sizes = (format_bytes(place.gpu_bytes), host)
            rows.append((f"{number} {place.name}", place.config, *sizes, seconds, fits))
        return "\n".join([card(self.title, []), *table(rows, right=(2, 3, 4)), *table([(self.verdict,)])])


def places_for(
    named: NamedModel, run: Run, device: str, *, host_bytes: int | None = None, nvme_speed: int | None = None,
    tensors: bool = False,
) -> Places:  # fmt: skip
    """Returns where weights and state of a model should be.

    Args:
        named: The model and the shape of its batch.
        run: The recipe, and the training settings with the number of GPUs.
        device: A card.
        host_bytes: Host memory of a machine; None: what is free here.
        nvme_speed: Bytes that a machine's drives read or write in a second; None: `NVME_BYTES_PER_SECOND`.
        tensors: Whether to look for the largest weight, which loads torch.

    Returns:
        The places.

    Raises:
        InputError: The card is none, or the model does not exist or does not fit its batch.
        CannotSimulateError: Something in the model needs values.
    """
    (gpu,) = cards_of(device) if device != "all" else (None,)
    if gpu is None or gpu.memory_bytes is None:
        raise InputError(f"--device is {device!r}; where state should be is a question for one card (snugfit devices).")
    limit, speed = host_bytes or free_host_bytes(), nvme_speed or NVME_BYTES_PER_SECOND
    workload, plain = run.workload, _without_places(run.recipe)
    assert workload.batch_size is not None
    share = workload.batch_size // workload.ranks
    predict = functools.partial(_predicted, named, gpu.name)
    whole = predict(plain, workload.replace(gpus=1, nodes=1, batch_size=share))
    # One GPU has nobody to share with; two that do the same each hold on the host together what one holds there.
    several = workload if workload.ranks > 1 else workload.replace(gpus=2, batch_size=2 * share)
    hosted = predict(plain.replace(shard="full", offload_parameters="all"), several)
    weights, others = _state_bytes(whole)
    state = weights + others
    on_host = _place("on the host", "ZeRO 3, cpu", hosted, limit, host_bytes=state // workload.nodes)
    places = [_place("on each GPU", "ZeRO 0", whole, limit)]
    if workload.ranks > 1:
        places.append(_place("shared out", "ZeRO 3", predict(plain.replace(shard="full"), workload), limit))
    places.append(on_host)
    pieces = -(-share // (plain.microbatch_size or share))
    # Weights are read for each pass over each piece, and written once; the others are written and read once (section 4).
    moved = (weights * (2 * pieces + 1) + 2 * others) // workload.nodes
    drives = _on_drives(on_host, moved, speed, fits=hosted.devices[0].fits)
    places.append(drives)
    chosen = next((place for place in places if place.fits), None)
    memory = "unknown" if limit is None else format_bytes(limit)
    title = (
        f"Where weights and state should be: {whole.title}, {format_bytes(state)} of them, on {workload.ranks} x {gpu.name} "
        f"({format_bytes(gpu.memory_bytes)}), host memory {memory}"
    )
    return Places(
        title=title,
        places=tuple(places),
        chosen=None if chosen is None else chosen.name,
        verdict=" ".join(_verdict(chosen, places, limit, moved, speed)),
        state_bytes=state,
        nvme_step_bytes=moved,
        largest_tensor=_largest_tensor(named) if tensors else None,
    )


def _without_places(recipe: Recipe) -> Recipe:
    """The recipe with everything on the GPU, and without what DeepSpeed cannot do."""
    from snugfit.workload import STORED_OPTIMIZERS

    if recipe.stochastic_rounding or recipe.accumulate_dtype == "fp32":
        # DeepSpeed's fp32 copies make 16 bytes a parameter with AdamW, as under autocast.
        recipe = recipe.replace(precision="bf16-mixed", stochastic_rounding=False, accumulate_dtype="as-is")
    return recipe.replace(
        shard="none", shard_unit="blocks", offload_parameters="none", offload_optimizer=False, step_in_backward=False,
        reduce_gradients="microbatch", optimizer=None if recipe.optimizer in STORED_OPTIMIZERS else recipe.optimizer,
    )  # fmt: skip


def _predicted(named: NamedModel, device: str, recipe: Recipe, workload: Workload) -> Estimate:
    Run(recipe, workload)
    return estimate_named(named, recipe=recipe, workload=workload, device=device)


def _place(name: str, config: str, found: Estimate, limit: int | None, *, host_bytes: int = 0) -> StatePlace:
    """A place that was simulated; its host memory is that of weights and state alone."""
    fits = found.devices[0].fits and (limit is None or host_bytes <= limit)
    return StatePlace(
        name=name, config=config, gpu_bytes=found.total_bytes, host_bytes=host_bytes, fits=fits,
        step_seconds=found.step_seconds,
    )  # fmt: skip


def _state_bytes(whole: Estimate) -> tuple[int, int]:
    """The bytes to place: weights, gradients and optimizer state, each at its peak."""
    most = {name: max(sizes) for name, sizes in whole.timeline(points=_ALL).bytes_by_category.items()}
    return whole.anatomy_bytes["weights"], most["gradients"] + most["optimizer_state"]


def _on_drives(host: StatePlace, moved: int, speed: int, *, fits: bool) -> StatePlace:
    """The drives: a step takes at least as long as from the host, and as the drives need for the bytes."""
    seconds = None if host.step_seconds is None else max(host.step_seconds, moved / speed)
    return dataclasses.replace(
        host, name="on NVMe", config="ZeRO 3, nvme", host_bytes=None, fits=fits, step_seconds=seconds
    )


def _verdict(
    chosen: StatePlace | None, places: list[StatePlace], limit: int | None, moved: int, speed: int
) -> Iterator[str]:
    """Which place to take, and why."""
    drives = places[-1]
    takes = moved / speed
    over = f"a step would move {format_bytes(moved)} over drives, {format_seconds(takes)} at {speed / 1e9:.2f} GB/s"
    if chosen is None:
        yield "No place will do: what a GPU computes with at a time is more than it has. Give smaller microbatches."
        return
    if chosen is places[0]:
        yield "It fits one GPU, so ZeRO would only cost time: run it plainly, or replicate it (ZeRO 0)."
    elif chosen.name == "shared out":
        yield "One GPU is too small, and all together are not: share it out, and offload nothing."
    elif chosen.name == "on the host":
        yield "The GPUs together are too small, and the host is not: offload to the cpu."
    else:
        short = (places[-2].host_bytes or 0) - (limit or 0)
        yield f"The host is too small by {format_bytes(short)}, so NVMe is worth it: there is no other place."
    if chosen is not drives:
        faster = chosen.step_seconds
        slower = "" if not faster else f" beside {format_seconds(faster)} a step here"
        yield f"NVMe is not worth it: {over}{slower}, and nothing would fit that does not fit now."
    else:
        slow = drives.step_seconds
        limits = slow is not None and takes >= slow * (1 - _WORTH)
        yield f"{over[0].upper()}{over[1:]}."
        yield (
            "The drives set the pace; a larger batch by more microbatches, or faster drives, makes more of them."
            if limits
            else "The GPUs set the pace; the drives keep up if nothing else uses them."
        )


def _largest_tensor(named: NamedModel) -> int:
    _, model = build_named(named)
    return max((weight.numel() for weight in model.parameters()), default=0)
