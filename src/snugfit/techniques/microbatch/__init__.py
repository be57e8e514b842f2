"""Microbatches (gradient accumulation): the batch goes through the model in pieces whose gradients add up.

Activations shrink with the microbatch, and nothing else does. The update is that of the whole batch: each microbatch's
loss is weighted by its share, so a ragged last piece, sums, and losses that are means over tokens come out the same.

Costs time: small pieces fill a GPU badly (the guides measured 3.3 times as long at 4 x 4 instead of 16), so take the largest
that fits. Not exact where model or loss look across the batch: batch norm takes other statistics, dropout draws other
masks, a contrastive loss sees other negatives, and what a model keeps between passes (running scales, counters) moves more
often. What structure does not show is tried on a few samples before the first update (`training/separation.py`);
`coupled_samples` declares it, and docs/losses.md says which `loss_weight` is whose.
In 16-bit weights the sum loses bits; `accumulate_dtype=fp32` keeps it in fp32 at 4 bytes a parameter.

Fidelity: exact (see above). Source: the guides; the token-weighting error of plain averaging is described in
huggingface/transformers#34191.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from snugfit.techniques.batch_share import largest_share
from snugfit.techniques.declaration import Technique

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """How the batch is cut."""

    microbatch_size: int | None = None
    """Samples in one forward and backward pass; gradients add up to those of the whole batch. None: the whole batch."""


def splits(recipe: Recipe, workload: Workload) -> bool:
    """Returns whether gradients of several passes add up; yes where the batch's size is unknown."""
    size, share = recipe.microbatch_size, largest_share(recipe, workload)
    return size is not None and (share is None or size < share)


TECHNIQUE = Technique(
    name="microbatch",
    fields=("microbatch_size",),
    rows=(4, 5),
    level="exact",
    summary="activations, in proportion to the microbatch",
    known_as="grad-accum gradient-accumulation grad-accumulation accumulation accumulate micro-batch batch-size",
    rules={
        "microbatch_size is {recipe.microbatch_size}; it must be at least 1.": lambda r: (
            r.microbatch_size is not None and r.microbatch_size < 1
        ),
    },
    misfits={
        "microbatch_size {recipe.microbatch_size} is larger than the batch of {workload.batch_size}; give at most "
        "{workload.batch_size}.": lambda r, w: (
            w.ranks == 1 and (r.microbatch_size or 0) > (w.batch_size or float("inf"))
        ),
        "microbatch_size {recipe.microbatch_size} is larger than a GPU's share of the batch, {workload.share_size} of "
        "{workload.batch_size}; give at most {workload.share_size}.": lambda r, w: (
            w.ranks > 1 and r.tensor_parallel == 1 and (r.microbatch_size or 0) > (w.share_size or float("inf"))
        ),
    },
    lowers={
        "the loss of a batch is not the weighted sum of the losses of its microbatches: samples depend on each "
        "other, or loss_weight is not that of this loss.": (
            "different",
            lambda r, w: splits(r, w) and bool(w.coupled_samples),
        ),
        "batch norm takes its statistics from each microbatch, not the batch.": (
            "different",
            lambda r, w: splits(r, w) and w.batch_norm,
        ),
        "dropout draws other masks for microbatches than for the whole batch.": (
            "different",
            lambda r, w: splits(r, w) and w.dropout,
        ),
        "gradients of microbatches add up in 16 bits; accumulate_dtype=fp32 keeps them.": (
            "rounding",
            lambda r, w: (
                splits(r, w) and (r.true_precision is not None or w.half_weights) and r.accumulate_dtype == "as-is"
            ),
        ),
    },
    may_change="batch",
    in_the_loop="cut the batch there, and call backward() for each piece",
    example=({}, {"microbatch_size": 4}),
)
