"""A measured run, as it is drawn: the same page, colours and phases as a predicted one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snugfit.report.timeline import Drawing, drawing_of
from snugfit.report.words import short_operator
from snugfit.units import format_bytes

if TYPE_CHECKING:
    from snugfit.profiler.profile import Profile


def profile_drawing(profile: Profile) -> Drawing:
    """Returns what is drawn of the steps that were watched.

    Args:
        profile: The profile.

    Returns:
        Its memory over the watched steps, and what it says in words.
    """
    operator = short_operator(profile.peak_operator)
    where = f"{operator} in {profile.peak_module}" if profile.peak_module else operator
    return drawing_of(
        profile.trace,
        profile.config,
        reserved=profile.reserved_peak_bytes is not None,
        title=f"{profile.script}: measured memory",
        heading=f"{profile.script} took {format_bytes(profile.allocator_peak_bytes)} on {profile.device}",
        subtitle=(
            f"Measured over {profile.steps} steps.",
            f"Peak in {profile.peak_phase or 'no phase'}, at {where or '-'}.",
        ),
        largest=profile.anatomy.largest,
    )
