"""What an estimate advises, in sentences: uneven sizes, a fragmented cache, and the costs of cards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from snugfit.errors import listed
from snugfit.report.console import table
from snugfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from snugfit.recording.fragmentation import Fragmentation
    from snugfit.recording.host_waits import HostWaits
    from snugfit.recording.uneven_sizes import UnevenSize
    from snugfit.simulator.costs import Cost


def uneven_in_words(found: Sequence[UnevenSize]) -> Iterator[str]:
    """Yields a sentence for each uneven size."""
    for one in found:
        sizes, padded = (" and ".join(map(str, numbers)) for numbers in (one.sizes, one.padded))
        where = f" in {listed(one.modules, 2)}" if one.modules else ""
        yield (
            f"{sizes}{where}: tensor cores load whole rows of {padded} in {one.dtype}; a step would take about "
            f"{format_seconds(one.lost_seconds)} less"
        )


def waits_in_words(found: HostWaits | None) -> str:
    """Returns where the host waits for the card in a step, and what that costs; nothing if it does not."""
    if found is None:
        return ""
    lines = [f"{one.line} ({one.what}{f', {one.times} times' if one.times > 1 else ''})" for one in found.lines]
    times = "once" if found.times == 1 else f"{found.times} times"
    if found.lost_seconds is None:
        cost = "what that costs is not known for this device"
    elif found.lost_seconds:
        cost = f"a step that did not would take about {format_seconds(found.lost_seconds)} less"
    else:
        cost = "by the clock that costs nothing"
    return f"{times} a step for the card, at {listed(lines, 3)}; {cost}"


def fragmentation_in_words(found: Fragmentation | None) -> str:
    """Returns what would lower the reserved bytes; nothing where they are all in use."""
    if found is None:
        return ""
    ways = []
    if found.empty_after is not None:
        when = "the model is built" if found.empty_after == "build" else "the first step"
        ways.append(
            f"torch.cuda.empty_cache() once after {when} gives {format_bytes(found.emptied_bytes)} back for good"
        )
    if found.expandable_bytes:
        ways.append(
            f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True reserves {format_bytes(found.expandable_bytes)} less"
        )
    told = "; ".join(ways) or "neither an emptied cache nor expandable segments would help"
    return f"{found.share:.0%} of the reserved bytes are in no tensor; {told}"


def cost_lines(costs: Sequence[Cost]) -> list[str]:
    """Returns a table of costs, the cheapest card that fits first."""
    if not costs:
        return []
    epochs = any(one.cost_per_epoch is not None for one in costs)
    rows = [("card", "price an hour", "", "a step", "1000 steps", "an epoch")]
    for one in costs:
        seconds = "-" if one.step_seconds is None else format_seconds(one.step_seconds)
        thousand, epoch = (
            "-" if cost is None else f"{cost:.3g}"
            for cost in (None if one.cost_per_step is None else 1000 * one.cost_per_step, one.cost_per_epoch)
        )
        fits = "fits" if one.fits else "does not fit"
        rows.append((one.name, f"{one.price_per_hour:g}", fits, seconds, thousand, epoch))
    shown = rows if epochs else [row[:-1] for row in rows]
    best = costs[0]
    last = (
        "  None of these fits and has a known speed."
        if best.cost_per_step is None
        else f"  The cheapest that fits is {best.name}, by the predicted seconds and the prices that were given."
    )
    return ["Costs, in the unit of the prices", *table(shown, right=(1, 3, 4, 5)[: 4 if epochs else 3]), last]
