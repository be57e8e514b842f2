"""A profile as people see it: the card after a script ran, the same as plain data for JSON, and its memory as a drawing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from snugfit.fields import as_data
from snugfit.report.console import card, table
from snugfit.report.estimate_advice import uneven_in_words
from snugfit.report.memory_tables import anatomy_table, grouped, largest_table, sizes_in_words
from snugfit.report.timeline import Drawing, drawing_of, timeline_to_plain
from snugfit.report.words import short_operator
from snugfit.units import format_bytes

if TYPE_CHECKING:
    from snugfit.profiler.advice import Suggestion
    from snugfit.profiler.profile import Profile
    from snugfit.recording.anatomy import Anatomy

_SAME = (
    *("script", "exit_code", "device", "steps", "allocator_peak_bytes", "process_peak_bytes"),
    *("peak_phase", "peak_operator", "peak_module", "inside_operators_bytes"),
)
"""Fields that the JSON has as they are."""
_BLOCK_LIMIT = 16
"""Blocks that the card names one by one; equal neighbours count once."""


def profile_card(profile: Profile) -> str:
    """Returns the whole card."""
    title = f"snugfit profile of {profile.script}: {profile.steps} steps watched on {profile.device}"
    anatomy = profile.anatomy
    parts = [[card(title, _facts(profile))]]
    if anatomy.peak_allocated_bytes:
        parts += [anatomy_table(anatomy.bytes_by_category, anatomy.experts_bytes), largest_table(anatomy.largest)]
        parts.append(["Blocks", *table(_blocks(anatomy), right=(1,))])
    parts.append([*advice_lines(profile), *(f"Note: {note}" for note in profile.notes)])
    return "\n\n".join("\n".join(part) for part in parts if part)


def _blocks(anatomy: Anatomy) -> Iterator[tuple[str, str, str]]:
    """The largest blocks, in the order of the model."""
    groups = list(grouped(anatomy.blocks, lambda one, other: one.bytes_by_category == other.bytes_by_category))
    least = sorted((block.size_bytes for _, block in groups), reverse=True)[:_BLOCK_LIMIT][-1]
    for name, block in groups:
        if block.size_bytes >= least:
            yield name, format_bytes(block.size_bytes), sizes_in_words(block.bytes_by_category)


def advice_lines(profile: Profile) -> list[str]:
    """Returns a sentence for each technique that is worth it, or one that says why there is none."""
    advice = profile.advice
    if advice.missing:
        return [f"No advice: {advice.missing}."]
    sizes = [f"  {sentence}." for sentence in uneven_in_words(advice.uneven_sizes)]
    if sizes:
        sizes.insert(0, "Sizes that tensor cores cannot load whole, by the clock of this simulation:")
    if not advice.suggestions:
        return ["No advice: no technique that was simulated would lower the peak by 2 % or more.", *sizes]
    assert advice.simulated_peak_bytes is not None
    return [
        "Advice, from simulations of this model (plain peak there: "
        f"{format_bytes(advice.simulated_peak_bytes)}; measured here: {format_bytes(profile.allocator_peak_bytes)}):",
        *(f"  {_sentence(suggestion)}" for suggestion in advice.suggestions),
        *sizes,
    ]


def profile_to_plain(profile: Profile) -> dict[str, Any]:
    """Returns a profile as plain data, for `--json`."""
    anatomy = profile.anatomy
    return {
        **{name: getattr(profile, name) for name in _SAME},
        "peak_allocated_bytes": anatomy.peak_allocated_bytes,
        "peak_reserved_bytes": profile.reserved_peak_bytes,
        "host_bytes": profile.host_peak_bytes,
        "anatomy_bytes": anatomy.bytes_by_category,
        "largest_tensors": [as_data(tensor, without=("nbytes",)) for tensor in anatomy.largest],
        "blocks": [
            {"name": block.name, "size_bytes": block.size_bytes, "anatomy_bytes": block.bytes_by_category}
            for block in anatomy.blocks
        ],
        "advice": {
            "suggestions": [{**as_data(one), "text": _sentence(one)} for one in profile.advice.suggestions],
            "simulated_peak_bytes": profile.advice.simulated_peak_bytes,
            "uneven_sizes": as_data(profile.advice.uneven_sizes),
            "missing": profile.advice.missing or None,
        },
        "notes": list(profile.notes),
        "sources": as_data(anatomy.sources),
        "timeline": timeline_to_plain(profile_drawing(profile)),
    }


def profile_drawing(profile: Profile) -> Drawing:
    """Returns the drawing of the watched steps: memory over them, and words."""
    operator = short_operator(profile.peak_operator)
    where = f"{operator} in {profile.peak_module}" if profile.peak_module else operator
    return drawing_of(
        profile.trace,
        profile.config,
        reserved=profile.reserved_peak_bytes is not None,
        heading=f"{profile.script} took {format_bytes(profile.allocator_peak_bytes)} on {profile.device}",
        subtitle=(
            f"Measured over {profile.steps} steps.",
            f"Peak in {profile.peak_phase or 'no phase'}, at {where or '-'}.",
        ),
    )


def _facts(profile: Profile) -> Iterator[tuple[str, str]]:
    where = profile.peak_operator or "(before any operator)"
    if profile.peak_module:
        where += f" of {profile.peak_module}"
    yield "peak", f"{format_bytes(profile.allocator_peak_bytes)} in {profile.peak_phase or 'no phase'}, at {where}"
    if profile.inside_operators_bytes:
        yield "", f"of which {format_bytes(profile.inside_operators_bytes)} inside that operator, in no tensor"
    if profile.reserved_peak_bytes is not None:
        yield "reserved", f"{format_bytes(profile.reserved_peak_bytes)} by the caching allocator"
    if profile.host_peak_bytes:
        what = "tensors outside torch's allocator" if profile.device == "cpu" else "tensors on the host"
        yield "host", f"{format_bytes(profile.host_peak_bytes)} of {what}"
    if profile.process_peak_bytes is not None:
        yield "process", f"{format_bytes(profile.process_peak_bytes)} resident at most, program code included"


def _sentence(suggestion: Suggestion) -> str:
    what, more = (
        ("time", suggestion.more_time) if suggestion.more_flops is None else ("arithmetic", suggestion.more_flops)
    )
    percent = round(100 * (more or 0.0))
    cost = f"about {percent} % more {what}" if percent > 0 else f"no more {what}"
    fields = ", ".join(f"{name}={value}" for name, value in suggestion.recipe.items())
    text = suggestion.text[0].upper() + suggestion.text[1:]
    return (
        f"{text} would save about {format_bytes(suggestion.saved_bytes)} for {cost}{f' ({fields})' if fields else ''}."
    )
