"""What transformers finds out by looking at positions: whether a batch packs several sequences into one row.

Its decoders look in every forward pass whether positions start again within a row. For ordinary batches they do not, and
no mask is made: attention takes its causal kernels. Under fake tensors, which have no values, transformers takes the other
way on purpose, and a simulation of it would show masks, copies of keys and values, and other attention kernels than the
run has. So it is told here that no row is packed, and the estimate says so.

Source: `transformers/masking_utils.py`, find_packed_sequence_indices (the check is skipped under fake tensors).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from snugfit.fake_device.replaced import replaced

ANSWER = "transformers was told that no row of a batch packs several sequences"


@contextmanager
def told_unpacked(answered: Callable[[str], None]) -> Iterator[None]:
    """Answers the question while the context is open, where transformers is loaded.

    Args:
        answered: Gets the answer in words when it is given.

    Yields:
        Nothing.
    """
    masks: Any = sys.modules.get("transformers.masking_utils")
    original = getattr(masks, "find_packed_sequence_indices", None)
    if original is None:
        yield
        return

    def find_packed_sequence_indices(position_ids: Any) -> None:
        original(position_ids)  # what it computes on the way belongs to the run
        answered(ANSWER)

    with replaced([(masks, "find_packed_sequence_indices", find_packed_sequence_indices)]):
        yield
