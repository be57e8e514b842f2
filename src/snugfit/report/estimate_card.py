"""An estimate as people see it: a card (total, anatomy, largest tensors, blocks, cards), and the drawing of its memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from snugfit.devices import device_named
from snugfit.recording.tensor_bytes import TensorBytes
from snugfit.report.console import card, table
from snugfit.report.estimate_advice import cost_lines, fragmentation_in_words, uneven_in_words, waits_in_words
from snugfit.report.memory_tables import anatomy_table, grouped, largest_table
from snugfit.report.timeline import Drawing, drawing_of
from snugfit.report.words import answers_in_words, recipe_in_words, short_operator
from snugfit.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from snugfit.recording.block_profile import BlockProfile
    from snugfit.simulator.prediction import DeviceFit, Estimate

_MOST_BLOCKS = 24
_ALIKE = 0.02
"""Blocks whose bytes differ by less are shown as one: the allocator rounds their tensors differently."""
_KEPT = ("gradients", "activations")
_LATER = "what is done only later comes on top: longer batches, more layers that train"


def estimate_card(estimate: Estimate) -> str:
    """Returns the whole card."""
    title = f"{estimate.title} on {'cards of the table' if estimate.device == 'all' else estimate.device}"
    tables = (
        anatomy_table(estimate.anatomy_bytes, estimate.experts_bytes),
        largest_table(estimate.largest),
        _blocks(estimate),
        _devices(estimate),
        cost_lines(estimate.costs),
    )
    return "\n\n".join([card(title, _facts(estimate)), *("\n".join(lines) for lines in tables if lines)])


def _facts(estimate: Estimate) -> Iterator[tuple[str, str]]:
    yield (
        "model",
        f"{format_count(estimate.parameters)} parameters{estimate.batch_shape and f', batch of {estimate.batch_shape}'}",
    )
    yield "recipe", recipe_in_words(estimate.recipe)
    if estimate.fidelity is not None:
        yield "fidelity", str(estimate.fidelity)
    if estimate.steps is not None:
        yield "steps", f"the first {estimate.steps}; {later_in_words(estimate.title)}"
    yield "total", f"{format_bytes(estimate.total_bytes)}{_total_in_words(estimate)}"
    if estimate.peak_reserved_bytes is not None:
        yield (
            "allocated",
            f"{format_bytes(estimate.peak_allocated_bytes)} in tensors at the peak, of which "
            f"{format_bytes(estimate.rounding_bytes)} is rounding; {format_bytes(estimate.fragmentation_bytes)} "
            "more is fragmentation",
        )
    yield "GPUs", _ranks_in_words(estimate)
    yield "peak", where_in_words(estimate)
    yield "host memory", format_bytes(estimate.host_bytes) if estimate.host_bytes else ""
    kernels = ", ".join(f"{name} in {count} modules" for name, count in estimate.attention_kernels.items())
    yield "attention", kernels
    yield "time", _time_in_words(estimate)
    yield "uneven sizes", "\n".join(uneven_in_words(estimate.uneven_sizes))
    yield "host waits", waits_in_words(estimate.host_waits)
    yield "cached", fragmentation_in_words(estimate.fragmentation)
    if estimate.processor:
        yield "holds for", f"{estimate.processor}: what operators take inside was measured there"
    yield "answered", answers_in_words(estimate.answered)


def _ranks_in_words(estimate: Estimate) -> str:
    if not estimate.ranks:
        return ""
    machines = f" in each of {estimate.nodes} machines" if estimate.nodes > 1 else ""
    fullest, *others = estimate.ranks
    if estimate.steps is not None:  # a script's, of which one process is looked at
        return f"{estimate.gpus}{machines}, a process each; the bytes are those of rank {fullest.ranks}"
    less = "".join(
        f"; {one.ranks}: {format_bytes(one.peak_reserved_bytes or one.peak_allocated_bytes)}" for one in others
    )
    return f"{estimate.gpus}{machines} share the batch; the bytes are those of the fullest ({fullest.ranks}){less}"


def later_in_words(title: str) -> str:
    """Returns what an estimate of some steps of a person's own does not see; a notebook's other cells are run."""
    return _LATER if title.endswith(".ipynb") else f"{_LATER}, a test at the end"


def where_in_words(estimate: Estimate) -> str:
    """Returns where the peak falls: phase, step, operator and module."""
    behind = estimate.steps is not None and estimate.peak_step >= estimate.steps
    step = (
        ("the first step", "the second step")[estimate.peak_step]
        if estimate.peak_step < 2
        else f"step {estimate.peak_step + 1}"
    )
    place = "behind the steps" if behind else f"of {step}"
    when = estimate.peak_phase if estimate.peak_phase in ("build", "load") else f"{estimate.peak_phase} {place}"
    module = f" in {estimate.peak_module}" if estimate.peak_module else ""
    return f"{when}: {short_operator(estimate.peak_operator)}{module}"


def _total_in_words(estimate: Estimate) -> str:
    if estimate.peak_reserved_bytes is None:
        return " in tensors"
    if estimate.context_bytes is not None:
        reserved, context = format_bytes(estimate.peak_reserved_bytes), format_bytes(estimate.context_bytes)
        nccl = f" + {format_bytes(estimate.nccl_bytes)} NCCL" if estimate.nccl_bytes else ""
        unknown = "; what NCCL takes on such cards nobody has published" if estimate.nccl_bytes is None else ""
        return f" = {reserved} reserved + {context} CUDA context ({context_in_words(estimate)}){nccl}{unknown}"
    return " reserved; CUDA's own context is not in it (differs from card to card, and is taken off each below)"


def context_in_words(estimate: Estimate) -> str:
    """Returns the source and range of CUDA's context, of an estimate for one card."""
    if estimate.context_range_bytes is None or estimate.context_source == "measured":
        return "measured here"
    least, most = map(format_bytes, estimate.context_range_bytes)
    where = "read on such cards" if estimate.context_source == "published" else "typical of its generation"
    return f"{where}, {least} to {most}: snugfit devices"


def _time_in_words(estimate: Estimate) -> str:
    work = f"{estimate.flops / 1e12:.3g} TFLOP a step"
    if estimate.step_seconds is None:
        of_one_card = estimate.gpus * estimate.nodes > 1 and estimate.processor is None and len(estimate.devices) == 1
        return f"{work}; no time, as it is not known how fast such cards are linked" if of_one_card else work
    sent = ""
    if estimate.communication_seconds and estimate.exposed_communication_seconds is not None:
        behind = format_seconds(estimate.exposed_communication_seconds)
        sent = f", of which {behind} waits for other GPUs ({format_seconds(estimate.communication_seconds)} of sending)"
    return f"{format_seconds(estimate.step_seconds)} a step{sent}; {work}"


def _blocks(estimate: Estimate) -> list[str]:
    used = [block for block in estimate.blocks if block.weight_bytes or block.bytes_by_category]
    groups = list(grouped(used, _alike))
    if not groups:
        return []
    timed = any(block.device_seconds for _, block in groups)
    rows = []
    for name, block in groups:
        others = sum(size for category, size in block.bytes_by_category.items() if category not in _KEPT)
        sizes = [block.weight_bytes, *(block.bytes_by_category.get(category, 0) for category in _KEPT), others]
        cells = [name, *(format_bytes(size) if size else "-" for size in sizes)]
        work = block.flops / 1e9
        cells.append("-" if not work else f"{work:.3g}" if work < 100 else f"{work:,.0f}")
        if timed:
            cells.append(format_seconds(block.device_seconds) if block.device_seconds else "-")
        rows.append(tuple(cells))
    titles = ("block", "weights", "gradients*", "activations*", "others*", "GFLOP", "on the card")
    shown = rows[:_MOST_BLOCKS]
    lines = ["Blocks (* alive at the peak; of the first, where a row stands for several)"]
    lines += table([titles if timed else titles[:-1], *shown], right=range(1, 7))
    if len(rows) > len(shown):
        lines.append(f"  and {len(rows) - len(shown)} more (--json has all)")
    return lines


def _alike(one: BlockProfile, other: BlockProfile) -> bool:
    return (
        re.sub(r"\d+", "#", one.name) == re.sub(r"\d+", "#", other.name)
        and one.weight_bytes == other.weight_bytes
        and one.flops == other.flops
        and one.bytes_by_category.keys() == other.bytes_by_category.keys()
        and all(abs(size / other.bytes_by_category[name] - 1) < _ALIKE for name, size in one.bytes_by_category.items())
    )


def _devices(estimate: Estimate) -> list[str]:
    if estimate.by_gpus:
        return _by_gpus(estimate)
    rows = [("card", "", "room", "a step")]
    for device in estimate.devices:
        seconds = "-" if device.step_seconds is None else format_seconds(device.step_seconds)
        rows.append((device.name, "fits" if device.fits else "does not fit", room_in_words(device), seconds))
    lines = ["Cards", *table(rows, right=(2, 3))]
    if len(estimate.devices) > 1:
        lines.append("  Kernels differ between generations of cards, so each generation was simulated.")
    return lines


def room_in_words(device: DeviceFit) -> str:
    """Returns how much of a card is left or missing."""
    if device.headroom_bytes is None:
        return "no limit of its own"
    return f"{format_bytes(abs(device.headroom_bytes))} {'left' if device.fits else 'short'}"


def _by_gpus(estimate: Estimate) -> list[str]:
    """A row for each card, a column for each number of GPUs."""
    rows = [("card", *(_times(one.gpus, one.nodes) for one in estimate.by_gpus))]
    for number, device in enumerate(estimate.devices):
        rows.append((device.name, *(_cell(one.devices[number : number + 1]) for one in estimate.by_gpus)))
    lines = ["Cards, by how many share the batch: memory left or missing on each, and seconds of a step", *table(rows)]
    lines += [f"  {_times(one.gpus, one.nodes)}: {one.refusal}" for one in estimate.by_gpus if one.refusal is not None]
    first = next(one for one in estimate.by_gpus if one.refusal is None)
    return [*lines, f"  What stands above is of {_times(first.gpus, first.nodes)}."]


def _times(gpus: int, nodes: int) -> str:
    machines = f" in each of {nodes}" if nodes > 1 else ""
    return f"{gpus} GPU{'s' * (gpus > 1)}{machines}"


def _cell(found: Sequence[DeviceFit]) -> str:
    if not found:
        return "not possible"
    (device,) = found
    room = room_in_words(device)
    return room if device.step_seconds is None else f"{room}, {format_seconds(device.step_seconds)}"


def estimate_drawing(estimate: Estimate) -> Drawing:
    """Returns the drawing of an estimate: memory over the run, thinned without losing a peak, and words."""
    where = "a CUDA card" if estimate.device == "all" else estimate.device
    on_cuda = estimate.peak_reserved_bytes is not None
    return drawing_of(
        estimate.trace,
        None if on_cuda else TensorBytes(),
        reserved=on_cuda,
        limit=_limit(estimate),
        heading=f"{estimate.title} needs {format_bytes(estimate.total_bytes)} on {where}",
        subtitle=_subtitle(estimate),
    )


def _subtitle(estimate: Estimate) -> tuple[str, str]:
    how = "a hand-written step" if estimate.recipe is None else f"recipe: {recipe_in_words(estimate.recipe)}"
    parts = [f"Predicted. Batch of {estimate.batch_shape}", how]
    if estimate.step_seconds is not None:
        parts.append(f"{format_seconds(estimate.step_seconds)} a step")
    return "; ".join(parts) + ".", f"Peak in {where_in_words(estimate)}."


def _limit(estimate: Estimate) -> tuple[str, int] | None:
    """Name and memory of the one card that was asked for, without the context."""
    if estimate.device in ("all", "cpu"):
        return None
    card = device_named(estimate.device)
    if card.memory_bytes is None:
        return None
    return card.name, card.memory_bytes - card.context_bytes
