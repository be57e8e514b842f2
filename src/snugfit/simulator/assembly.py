"""How an estimate is put together: recordings are replayed, timed and read off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from snugfit.devices import Device
from snugfit.fidelity import fidelity
from snugfit.recipe import Recipe
from snugfit.recording.allocator import AllocatorConfig
from snugfit.recording.anatomy import anatomy
from snugfit.recording.attention_seen import attention_seen
from snugfit.recording.block_profile import block_profiles
from snugfit.recording.clock import Timing, clock, runs_of_step
from snugfit.recording.cpu_clock import cpu_clock, kept_speeds
from snugfit.recording.fragmentation import fragmentation
from snugfit.recording.host_memory import machine_host_bytes, other_host_bytes
from snugfit.recording.host_waits import host_waits
from snugfit.recording.recording import Recording
from snugfit.recording.replay import Replay
from snugfit.recording.replays import Replays
from snugfit.recording.tensor_bytes import TensorBytes
from snugfit.recording.uneven_sizes import uneven_sizes
from snugfit.simulator.prediction import LARGEST, DeviceFit, Estimate, RankNeeds
from snugfit.units import numbers_in_words


def assemble(
    rows: Sequence[tuple[Device, Recording]],
    *,
    headline: Recording,
    recipe: Recipe | None,
    title: str,
    others: Sequence[tuple[Sequence[int], Recording]] = (),
) -> Estimate:
    """Replays recordings (`rows`: cards with their recording) and puts the estimate together.

    `headline`: the recording that the peak and the anatomy are of.
    `others`: processes that need less than those of the headline, and what one of them recorded.
    """
    only = rows[0][0] if len(rows) == 1 else None
    on_cpu = only is not None and only.name == "cpu"
    config = TensorBytes() if on_cpu else None
    trace = headline.trace
    # A recording stands for all cards of a generation, and is replayed without limit once for all of them.
    replays = {id(recorded): Replays(recorded.trace, config) for _, recorded in rows}
    played = replays[id(headline)].unlimited
    inside = anatomy(
        trace, config, largest=LARGEST, played=played, experts=headline.expert_modules, blocks=headline.block_names
    )
    context = None if only is None else only.context
    reserved = None if on_cpu else played.peak_reserved_bytes
    held = played.peak_allocated_bytes if on_cpu else played.peak_reserved_bytes
    timings = {id(card): _timing(card, recorded) for card, recorded in rows}
    timing = timings[id(only)] if only is not None else None
    workload = headline.workload
    return Estimate(
        title=title,
        device=only.name if only is not None else "all",
        batch_shape=headline.batch_shape,
        parameters=headline.parameters,
        peak_allocated_bytes=played.peak_allocated_bytes,
        peak_reserved_bytes=reserved,
        context_bytes=None if context is None else context.typical_bytes,
        context_range_bytes=None if context is None else context.range_bytes,
        context_source=None if context is None else context.source,
        nccl_bytes=0 if only is None else only.nccl_bytes,
        total_bytes=held + (0 if only is None else only.context_bytes),
        host_bytes=machine_host_bytes(headline),
        anatomy_bytes=inside.bytes_by_category,
        experts_bytes=inside.experts_bytes,
        attention_kernels=attention_seen(trace),
        fragmentation_bytes=0 if on_cpu else played.fragmentation_bytes,
        rounding_bytes=inside.rounding_bytes,
        peak_phase=played.peak_phase,
        peak_step=next((mark.step for mark in reversed(trace.marks()) if mark.event <= played.peak_event), 0),
        peak_operator=played.peak_operator,
        peak_module=played.peak_module,
        step_seconds=None if timing is None else timing.step_seconds,
        communication_seconds=None if timing is None else timing.communication_seconds,
        exposed_communication_seconds=None if timing is None else timing.exposed_communication_seconds,
        flops=_flops(headline),
        recipe=recipe,
        fidelity=None if recipe is None or workload is None else fidelity(recipe, workload),
        torch_version=headline.torch_version,
        processor=headline.processor,
        gpus=1 if workload is None else workload.gpus,
        nodes=1 if workload is None else workload.nodes,
        ranks=tuple(_rank_needs(headline, played, others, config)),
        devices=tuple(_fit(card, recorded, replays[id(recorded)], timings[id(card)]) for card, recorded in rows),
        largest=inside.largest,
        sources=inside.sources,
        blocks=block_profiles(trace, inside, headline.weight_bytes, only, headline.block_names),
        answered=headline.answered,
        notes=tuple(dict.fromkeys(text for _, recorded in rows for text in recorded.warnings)),
        steps=headline.steps,
        uneven_sizes=() if only is None or on_cpu else uneven_sizes(trace, only),
        fragmentation=None if on_cpu else fragmentation(trace, played),
        host_waits=None if on_cpu else host_waits(trace, only),
        trace=trace,
        batch_size=None if workload is None else workload.batch_size,
    )


def _fit(card: Device, recorded: Recording, replays: Replays, timing: Timing | None) -> DeviceFit:
    fits, headroom = replays.fits(card)
    if headroom is not None and fits and recorded.kept_later_bytes > headroom:
        fits, headroom = False, headroom - recorded.kept_later_bytes
    seconds = None if timing is None else timing.step_seconds
    return DeviceFit(name=card.name, fits=fits, headroom_bytes=headroom, step_seconds=seconds)


def _rank_needs(
    headline: Recording,
    of_headline: Replay,
    others: Sequence[tuple[Sequence[int], Recording]],
    config: AllocatorConfig | None,
) -> Iterator[RankNeeds]:
    if not headline.alike_ranks:
        return
    told = {number for numbers, _ in others for number in numbers}
    first = [number for numbers in headline.alike_ranks for number in numbers if number not in told]
    alike = [(first, headline), *others]
    if headline.one_builds and len(first) > 1:  # who builds the model has more on the host
        alike[:1] = [(first[:1], headline), (first[1:], headline)]
    for numbers, recorded in alike:
        played = of_headline if recorded is headline else Replays(recorded.trace, config).unlimited
        yield RankNeeds(
            ranks=numbers_in_words(numbers),
            peak_allocated_bytes=played.peak_allocated_bytes,
            peak_reserved_bytes=None if isinstance(config, TensorBytes) else played.peak_reserved_bytes,
            host_bytes=other_host_bytes(recorded)
            if headline.one_builds and 0 not in numbers
            else played.host_peak_bytes,
        )


def _timing(card: Device, recorded: Recording) -> Timing | None:
    trace = recorded.trace
    if recorded.processor is None:
        return recorded.timing(lambda step: clock(trace, card, step=step))
    speeds = kept_speeds(recorded.processor, recorded.torch_version)
    return None if speeds is None else recorded.timing(lambda step: cpu_clock(trace, speeds, step=step))


def _flops(recorded: Recording) -> int:
    """Operations of the steps after the first, on average."""
    trace = recorded.trace
    steps = recorded.steady_steps
    return sum(trace.runs[index].flops for step in steps for index in runs_of_step(trace, step)) // len(steps)
