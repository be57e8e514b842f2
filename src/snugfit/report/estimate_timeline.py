"""A predicted run, as it is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snugfit.devices import device_named
from snugfit.recording.tensor_bytes import TensorBytes
from snugfit.report.estimate_card import where_in_words
from snugfit.report.timeline import Drawing, drawing_of
from snugfit.report.words import recipe_in_words
from snugfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from snugfit.simulator.prediction import Estimate


def estimate_drawing(estimate: Estimate) -> Drawing:
    """Returns what is drawn of an estimate.

    Args:
        estimate: The estimate.

    Returns:
        Its memory over the run, thinned so that no peak is lost, and what it says in words.
    """
    where = "a CUDA card" if estimate.device == "all" else estimate.device
    on_cuda = estimate.peak_reserved_bytes is not None
    return drawing_of(
        estimate.trace,
        None if on_cuda else TensorBytes(),
        reserved=on_cuda,
        limit=_limit(estimate),
        title=f"{estimate.title}: predicted memory",
        heading=f"{estimate.title} needs {format_bytes(estimate.total_bytes)} on {where}",
        subtitle=_subtitle(estimate),
        largest=estimate.largest,
    )


def _subtitle(estimate: Estimate) -> tuple[str, str]:
    how = "a hand-written step" if estimate.recipe is None else f"recipe: {recipe_in_words(estimate.recipe)}"
    parts = [f"Predicted. Batch of {estimate.batch_shape}", how]
    if estimate.step_seconds is not None:
        parts.append(f"{format_seconds(estimate.step_seconds)} a step")
    return "; ".join(parts) + ".", f"Peak in {where_in_words(estimate)}."


def _limit(estimate: Estimate) -> tuple[str, int] | None:
    """Name and memory of the one card that was asked for, context taken off."""
    if estimate.device in ("all", "cpu"):
        return None
    card = device_named(estimate.device)
    if card.memory_bytes is None:
        return None
    return card.name, card.memory_bytes - (card.context_bytes or 0)
