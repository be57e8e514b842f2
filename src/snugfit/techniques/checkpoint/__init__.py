"""Activation checkpointing: keep a block's inputs, forget what it computed, compute it again when backward arrives.

Saves what lies between the blocks' inputs: of `n` equal blocks, `n` inputs and one block's inside remain. Costs one more
forward pass of each checkpointed block, about a third more time when all are. `blocks:K` and `every:N` checkpoint only as
many as the memory needs; the first blocks wait longest for their backward, so K counts from the front. `selective`
recomputes the cheap operators (norms, activations, additions) and keeps the results of matmuls, convolutions and
attention: fewer bytes saved, very little time.

Random state is kept, so dropout masks are the same (Python's and NumPy's numbers too), and batch norm's running statistics
move once, not twice. So does all else that a block keeps between passes: buffers, attributes, lists, counters, variables of
closures are as they were while it is computed again, and then as they are (`forward_state.py`). A trial before each block's
first pass finds out what it writes into. A block that writes into its input or a weight is left as it is, by name; one that
gives two results from the same state is refused. Blocks are found by structure (`blocks.py`) or named. A model that already
checkpoints itself is not wrapped again. A block that is never called, because the model calls its parts or uses its weights
itself, is not computed again either: if that is so of all, the first step says it (`calls.py`), and plans leave it out.

Wrong when: parameters, not activations, fill the memory; the last block (its recomputation comes at once, so it saves
nothing). Fidelity: exact. Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016 (arXiv:1604.06174);
torch.utils.checkpoint, non-reentrant; Korthikanti et al., 2022 (arXiv:2205.05198) for the selective form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from snugfit.techniques.declaration import SWITCHED_OFF, SWITCHED_ON, Technique
from snugfit.techniques.planning import UNCALLED, ByBlock, Choice, Planning, first_or_named, says_how_many

_ALL = {"checkpoint": "all"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """Which blocks are recomputed."""

    checkpoint: str | tuple[str, ...] = "none"
    """Activation checkpointing: none, all (every block), selective (keep matmuls and attention, recompute the rest),
    every:N (every N-th block), blocks:K (exactly the first K blocks), or names of modules, separated by commas."""


def _some(chosen: Sequence[int], names: Sequence[str]) -> str | tuple[str, ...]:
    if not chosen:
        return "none"
    return "all" if len(chosen) == len(names) else first_or_named(chosen, names)


def _count(value: str | tuple[str, ...], blocks: int) -> int | None:
    if isinstance(value, tuple):
        return len(value)
    kind, _, number = value.partition(":")
    return {"all": blocks, "blocks": int(number or 0), "every": -(-blocks // int(number or 1))}.get(kind)


TECHNIQUE = Technique(
    name="checkpoint",
    fields=("checkpoint",),
    rows=(6,),
    level="exact",
    summary="activations inside blocks, for one more forward pass",
    known_as=(
        "gradient-checkpointing activation-checkpointing checkpointing recompute rematerialization sac "
        "selective-checkpointing"
    ),
    names={"checkpoint": ("none", "all", "selective", "every:N", "blocks:K")},
    spellings={
        (*SWITCHED_ON, "full", "layers", "layer", "block", "gradient-checkpointing"): ("all",),
        SWITCHED_OFF: ("none",),
        ("blocks",): ("blocks:K", "all"),
        ("every", "every-n"): ("every:N",),
        ("sac", "selective-checkpointing", "policy"): ("selective",),
    },
    meanings={"all": "every block", "blocks:K": "the first K blocks", "every:N": "every N-th block"},
    rules={
        "checkpoint is {recipe.checkpoint!r}; give every:N or blocks:K with a whole number of at least 1.": lambda r: (
            ":" in r.checkpoint and not says_how_many(r.checkpoint, "blocks", "every")
        ),
        "checkpoint='selective' contradicts offload_activations: what selective checkpointing keeps is not passed "
        "through saved-tensor hooks, so it cannot be moved. Use checkpoint='all'.": lambda r: (
            r.checkpoint == "selective" and r.offload_activations != "none"
        ),
        "checkpoint='selective' contradicts inplace: it keeps the results of matmuls, which nothing may overwrite. "
        "Leave one of them out.": lambda r: r.checkpoint == "selective" and r.inplace,
    },
    hooks="snugfit.techniques.checkpoint.apply:Checkpointing",
    may_change="passes",
    planning=Planning(
        part="blocks",
        choices=(Choice(_ALL), Choice({"checkpoint": "selective"})),
        by_block=ByBlock(
            how="recompute",
            value=_some,
            count=_count,
            when_called=lambda value: value != "none",
            in_words="checkpointing all blocks",
        ),
        off=lambda _, plan: "" if plan.calls_blocks else UNCALLED,
        instead=lambda r, _: (
            f"microbatches of {r.microbatch_size} are cheaper" if r.microbatch_size is not None else ""
        ),
        advised="checkpointing these {blocks} blocks",
    ),
    example=({}, _ALL),
)
