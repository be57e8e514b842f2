"""Nested tensors, which `nn.TransformerEncoder` makes of a padded batch in evaluation: they cannot be simulated.

It makes one where the padding of every row is at its end, which only values tell. Here it is told that this is not so, and
goes on with the padded batch, which takes at least as much memory. Training never makes one.

Source: `torch/nn/modules/transformer.py`, TransformerEncoder.forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from snugfit.fake_device.replaced import replaced

ANSWER = "evaluation is counted with padded batches, where torch would leave the padding out (nested tensors)"


@contextmanager
def told_padded_anywhere(answered: Callable[[str], None]) -> Iterator[None]:
    """Answers the question while the context is open.

    Args:
        answered: Gets the answer in words when it is given.

    Yields:
        Nothing.
    """

    def left_aligned(*_: Any, **__: Any) -> bool:
        answered(ANSWER)
        return False

    with replaced([(torch, "_nested_tensor_from_mask_left_aligned", left_aligned)]):
        yield
