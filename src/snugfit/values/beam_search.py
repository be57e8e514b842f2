"""Whether transformers' search with beams goes on, which it asks the values of its sentences."""

from __future__ import annotations

import inspect

TO_THE_END = "text is generated with beams up to its greatest length"


def beams_may_go_on() -> bool:
    """Whether transformers asks if a better sentence may still come: it may, up to the greatest length.

    Source: `transformers/generation/utils.py`, GenerationMixin._beam_search.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "_beam_search" and "transformers" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
