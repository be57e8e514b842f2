"""What transformers finds out by looking at a padding mask: whether it masks anything.

A mask whose values are all 1 is left out, and attention takes kernels without one. It is looked at in every forward pass,
so in a batch of which one sample is padded, the microbatches of the others run without a mask and take less memory. A
simulated mask has no values, and transformers keeps it. The prediction then holds for padding in every microbatch, which
is the most that it can take, and the estimate says so.

Source: `transformers/masking_utils.py`, _ignore_causal_mask_sdpa and _ignore_bidirectional_mask_sdpa.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from snugfit.fake_device.replaced import replaced

ANSWER = "transformers was told that every microbatch has padding; those without take less memory, as they need no mask"
_QUESTIONS = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")


@contextmanager
def told_padded(answered: Callable[[str], None]) -> Iterator[None]:
    """Takes down that the question was asked while the context is open, where transformers is loaded.

    Args:
        answered: Gets the answer in words when it is given.

    Yields:
        Nothing.
    """
    masks: Any = sys.modules.get("transformers.masking_utils")
    asked = [name for name in _QUESTIONS if hasattr(masks, name)]
    with replaced((masks, name, _noticed(getattr(masks, name), answered)) for name in asked):
        yield


def _noticed(original: Callable[..., bool], answered: Callable[[str], None]) -> Callable[..., bool]:
    def ignore_mask(padding_mask: Any, *args: Any, **kwargs: Any) -> bool:
        ignored = original(padding_mask, *args, **kwargs)
        if padding_mask is not None and not ignored:
            answered(ANSWER)
        return ignored

    return ignore_mask
