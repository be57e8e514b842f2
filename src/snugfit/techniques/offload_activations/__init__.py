"""Activation offload: what backward will need waits in host memory.

Saves nearly all activations (`all`), those of the first K blocks (`blocks:K`) or of named modules, or only the inputs of
checkpointed blocks (`checkpoints`), which together with checkpointing leaves one block's inside on the device. Costs the
copies: on CUDA they run on a second stream from and to page-locked memory beside the compute, and hurt when a block computes
faster than the link copies (short sequences, small batches). Host memory must hold what leaves the device.

Copies out are ordered by events, and at most `DEPTH` tensors wait for theirs; copies back are started one tensor ahead of
need. Both run into memory of the compute stream, so the peak does not depend on timing. Parameters, buffers, views of
them and tensors under `MIN_BYTES` stay. A tensor saved by several operators moves once.

Fidelity: exact. Source: torch.autograd.graph.saved_tensors_hooks; the fixed depth follows the design notes of torchtune's
OffloadActivations (meta-pytorch/torchtune, training/_activation_offloading.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from snugfit.techniques.declaration import SWITCHED_OFF, SWITCHED_ON, Technique
from snugfit.techniques.planning import ByBlock, Choice, Planning, first_or_named, says_how_many

_ALL = {"offload_activations": "all"}
_INPUTS = {"checkpoint": "all", "offload_activations": "checkpoints"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """Which saved tensors wait on the host."""

    offload_activations: str | tuple[str, ...] = "none"
    """Saved activations that wait for backward in host memory: none, all, checkpoints (only the inputs of checkpointed
    blocks), blocks:K (those of exactly the first K blocks), or names of modules, separated by commas."""


def _some(chosen: Sequence[int], names: Sequence[str]) -> str | tuple[str, ...]:
    return first_or_named(chosen, names) if chosen else "none"


def _count(value: str | tuple[str, ...], _: int) -> int | None:
    if isinstance(value, tuple):
        return len(value)
    return int(value.partition(":")[2]) if says_how_many(value, "blocks") else None


TECHNIQUE = Technique(
    name="offload_activations",
    fields=("offload_activations",),
    rows=(7,),
    level="exact",
    summary="activations, for copies to host memory",
    known_as="activation-offload activation-offloading cpu-offload offload offloading save-on-cpu",
    names={"offload_activations": ("none", "all", "checkpoints", "blocks:K")},
    spellings={(*SWITCHED_ON, "cpu", "host"): ("all",), SWITCHED_OFF: ("none",), ("blocks",): ("blocks:K", "all")},
    meanings={"blocks:K": "the first K blocks"},
    rules={
        "offload_activations is {recipe.offload_activations!r}; give blocks:K with K a whole number from 1.": lambda r: (
            ":" in r.offload_activations and not says_how_many(r.offload_activations, "blocks")
        ),
        "offload_activations='checkpoints' moves the inputs of checkpointed blocks, and checkpoint is "
        "{recipe.checkpoint!r}. Set checkpoint='all' (or every:N, blocks:K, names), or "
        "offload_activations='all'.": lambda r: (
            r.offload_activations == "checkpoints" and r.checkpoint in ("none", "selective")
        ),
    },
    hooks="snugfit.techniques.offload_activations.apply:ActivationOffload",
    may_change="passes",
    planning=Planning(
        part="blocks",
        choices=(Choice(_ALL), Choice(_INPUTS)),
        leaner=(
            Choice(_INPUTS),
            Choice({"checkpoint": "all", "offload_activations": "none"}),
            Choice({"checkpoint": "none", **_ALL}),
            Choice({"offload_activations": "checkpoints"}),  # of the blocks that are pinned to be checkpointed
        ),
        by_block=ByBlock(
            how="offload", value=_some, count=_count, when_called=lambda value: value not in ("none", "all")
        ),
        on_host=True,
        instead=lambda r, blocks: f"checkpointing {blocks} is cheaper" if r.checkpoint != "none" else "",
    ),
    example=({}, _ALL),
)
