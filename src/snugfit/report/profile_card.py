"""The card of a profile: what a person reads after a script ran, and the same as plain data for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from snugfit.report.console import Column, Table, plain_for
from snugfit.units import format_bytes

if TYPE_CHECKING:
    from snugfit.profiler.advice import Suggestion
    from snugfit.profiler.profile import Profile
    from snugfit.recording.anatomy import Anatomy, BlockShare

_BLOCK_LIMIT = 16
"""Blocks that the card names one by one; equal neighbours count once."""


def print_profile(profile: Profile, stream: TextIO) -> None:
    """Prints the card.

    Args:
        profile: The profile.
        stream: Where to.
    """

    def line(text: str = "") -> None:
        stream.write(plain_for(text, stream.encoding) + "\n")

    anatomy = profile.anatomy
    line()
    line(f"snugfit profile of {profile.script}: {profile.steps} steps watched on {profile.device}")
    for name, value in _facts(profile):
        line(f"  {name:<16}{value}")
    if anatomy.peak_allocated_bytes:
        _print_tables(anatomy, stream)
    line()
    for text in advice_lines(profile):
        line(text)
    for note in profile.notes:
        line(f"Note: {note}")


def _print_tables(anatomy: Anatomy, stream: TextIO) -> None:
    stream.write("\n")
    table = Table([Column("at the peak", 18), Column("size", 10, True), Column("share", 6, True)], stream)
    table.print_header()
    for name, size in anatomy.bytes_by_category.items():
        if size:
            table.print_row([name.replace("_", " "), format_bytes(size), _share(size, anatomy.peak_allocated_bytes)])
    stream.write("\n")
    table = Table(
        [Column("largest tensors", 15), Column("size", 10, True), Column("operator", 36), Column("module", 24)], stream
    )
    table.print_header()
    for tensor in anatomy.largest:
        where = tensor.module or "(outside)"
        table.print_row([tensor.category.replace("_", " "), format_bytes(tensor.size_bytes), tensor.operator, where])
    stream.write("\n")
    table = Table([Column("blocks", 28), Column("size", 10, True), Column("of which", 40)], stream)
    table.print_header()
    for name, block in _grouped(anatomy.blocks):
        largest = sorted(block.bytes_by_category.items(), key=lambda item: -item[1])[:3]
        parts = ", ".join(f"{category.replace('_', ' ')} {format_bytes(size)}" for category, size in largest)
        table.print_row([name, format_bytes(block.size_bytes), parts])


def advice_lines(profile: Profile) -> list[str]:
    """Returns the advice in sentences.

    Args:
        profile: The profile.

    Returns:
        One sentence for each technique that is worth it, or one that says why there is none.
    """
    advice = profile.advice
    if advice.missing:
        return [f"No advice: {advice.missing}."]
    if not advice.suggestions:
        return ["No advice: no technique that was simulated would lower the peak by 2 % or more."]
    assert advice.simulated_peak_bytes is not None
    return [
        "Advice, from simulations of this model (plain peak there: "
        f"{format_bytes(advice.simulated_peak_bytes)}; measured here: {format_bytes(profile.allocator_peak_bytes)}):",
        *(f"  {_sentence(suggestion)}" for suggestion in advice.suggestions),
    ]


def profile_to_plain(profile: Profile) -> dict[str, Any]:
    """Returns a profile as plain data.

    Args:
        profile: The profile.

    Returns:
        What `--json` prints.
    """
    anatomy = profile.anatomy
    return {
        "script": profile.script,
        "exit_code": profile.exit_code,
        "device": profile.device,
        "steps": profile.steps,
        "peak_allocated_bytes": anatomy.peak_allocated_bytes,
        "allocator_peak_bytes": profile.allocator_peak_bytes,
        "peak_reserved_bytes": profile.reserved_peak_bytes,
        "host_bytes": profile.host_peak_bytes,
        "process_peak_bytes": profile.process_peak_bytes,
        "peak_phase": profile.peak_phase,
        "peak_operator": profile.peak_operator,
        "peak_module": profile.peak_module,
        "inside_operators_bytes": profile.inside_operators_bytes,
        "anatomy_bytes": anatomy.bytes_by_category,
        "largest_tensors": [
            {
                "size_bytes": tensor.size_bytes, "category": tensor.category, "module": tensor.module,
                "operator": tensor.operator, "phase": tensor.phase,
            }
            for tensor in anatomy.largest
        ],
        "blocks": [
            {"name": block.name, "size_bytes": block.size_bytes, "anatomy_bytes": block.bytes_by_category}
            for block in anatomy.blocks
        ],
        "advice": {
            "suggestions": [
                {
                    "recipe": suggestion.settings, "optimizer_arguments": suggestion.optimizer_arguments,
                    "text": _sentence(suggestion), "saved_bytes": suggestion.saved_bytes,
                    "more_time": None if suggestion.time_is_flops else suggestion.more_time,
                    "more_flops": suggestion.more_time if suggestion.time_is_flops else None,
                }
                for suggestion in profile.advice.suggestions
            ],
            "simulated_peak_bytes": profile.advice.simulated_peak_bytes,
            "missing": profile.advice.missing or None,
        },
        "notes": list(profile.notes),
    }  # fmt: skip


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


def _share(size: int, total: int) -> str:
    return f"{100 * size / total:.0f} %" if total else "-"


def _sentence(suggestion: Suggestion) -> str:
    what = "arithmetic" if suggestion.time_is_flops else "time"
    percent = round(100 * suggestion.more_time)
    cost = f"about {percent} % more {what}" if percent > 0 else f"no more {what}"
    fields = ", ".join(f"{name}={value}" for name, value in suggestion.settings.items())
    text = suggestion.text[0].upper() + suggestion.text[1:]
    return (
        f"{text} would save about {format_bytes(suggestion.saved_bytes)} for {cost}{f' ({fields})' if fields else ''}."
    )


def _grouped(blocks: Sequence[BlockShare]) -> list[tuple[str, BlockShare]]:
    """Puts neighbours with the same numbers in one row, and what is beyond the limit away, smallest first."""
    groups: list[list[BlockShare]] = []
    for block in blocks:
        if groups and groups[-1][0].bytes_by_category == block.bytes_by_category:
            groups[-1].append(block)
        else:
            groups.append([block])
    kept = sorted(groups, key=lambda group: -group[0].size_bytes)[:_BLOCK_LIMIT]
    return [
        (group[0].name if len(group) == 1 else f"{group[0].name} ... {group[-1].name}, each", group[0])
        for group in groups
        if any(group is other for other in kept)
    ]
