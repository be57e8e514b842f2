"""Clipping that a loop still does by hand: behind a step there are no gradients left, and torch clips nothing in silence."""

from __future__ import annotations

from types import FrameType

from snugfit.errors import warn

_CLIPS = ("clip_grad_norm_", "clip_grad_value_")


def warn_of_clipping(step: FrameType | None) -> None:
    """Warns where the code that called a trainer's `step`, by its frame, names a function that clips gradients."""
    loop = None if step is None or step.f_back is None else step.f_back.f_code
    clips = [name for name in _CLIPS if loop is not None and name in loop.co_names]
    if clips:
        warn(
            f"{' and '.join(clips)} beside trainer.step finds no gradients of its model, which the step has used already. "
            "Where it is for that model, give snugfit.prepare clip_norm=... in its place."
        )
