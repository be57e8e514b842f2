"""Several GPUs: each takes its share of the batch, and what the model needs between steps can be shared out, too.

Under `none` every GPU holds everything (plain data parallelism): faster, and no byte less but for the activations of a
smaller share. It takes any model, since only gradients are sent, in buckets beside backward: zeros where a GPU has none.
`gradients` shares out weights, gradients and optimizer state, and keeps the weights that forward has collected until
backward has used them; `full` lets them go after each block and collects them once more in backward.
`hybrid:N` does so within groups of N GPUs and holds every share once a group, so that what crosses machines is one sum of
gradients. Costs collecting weights (twice under `full`) and adding up gradients, beside the compute where links are fast.

A unit is what is collected at a time: a block of the model (`blocks.py`), or modules of at least `size:N` parameters.
`offload_parameters=all` keeps the shares on the host, where the update then runs; units visit the GPU. Gradients of
microbatches are added up among the GPUs after each one, so that each GPU keeps only its share of the sum;
`reduce_gradients=batch` does it once a batch: less on the links, and a whole model of gradients on every GPU.

The update is that of the whole batch on one GPU: losses are weighted by their share of all samples (or labels), and added
up. Adafactor and Muon look at whole matrices, so their weights are not cut. Not exact where model or loss look across the
batch, as with microbatches. Where weights are shared out, all processes have to go through the model in the same way, and
may use its weights only in the forward method of their block: else the first step is refused, before anything changes.

Fidelity: exact; rounding where gradients are added up in 16 bits. Source: Rajbhandari et al., ZeRO, 2020
(arXiv:1910.02054); Zhao et al., PyTorch FSDP, 2023 (arXiv:2304.11277); carried out by torch's `fully_shard`;
buckets as of Li et al., PyTorch Distributed, 2020 (arXiv:2006.15704).
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from snugfit.techniques.batch_share import share_of, sharers
from snugfit.techniques.declaration import SWITCHED_OFF, SWITCHED_ON, Technique
from snugfit.techniques.microbatch import splits
from snugfit.techniques.planning import Changes, Planning, Situation

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """How GPUs share what they hold."""

    shard: str = "none"
    """Several GPUs: none (each holds everything), gradients (weights, gradients and optimizer state are shared out, and
    collected once a step), full (collected again in backward), hybrid:N (full within groups of N GPUs)."""

    shard_unit: str = "blocks"
    """What is collected at a time: blocks, or size:N (modules of at least N parameters)."""

    reduce_dtype: Literal["as-is", "fp32", "bf16"] = "as-is"
    """Format in which gradients of several GPUs are added up."""

    reduce_gradients: Literal["microbatch", "batch"] = "microbatch"
    """When gradients of several GPUs are added up: after each microbatch, or once a batch."""

    offload_parameters: Literal["none", "all"] = "none"
    """Several GPUs: each one's share of weights, gradients and optimizer state is kept on the host (all)."""


def numbered(value: str, word: str) -> int | None:
    """Returns N of `word:N`; None for anything else."""
    kind, _, number = value.partition(":")
    return int(number) if kind == word and number.isdecimal() and int(number) > 0 else None


def group_size(recipe: Recipe, ranks: int) -> int:
    """Returns among how many GPUs the weights are shared out."""
    if recipe.shard == "none":
        return 1
    return numbered(recipe.shard, "hybrid") or sharers(recipe, ranks)


def least_weights(recipe: Recipe, ranks: int) -> float:
    """Returns the smallest part of all weights that a GPU holds at some moment of every step, whatever else is chosen."""
    if recipe.offload_parameters == "all":
        return 0.0
    cut = ranks // sharers(recipe, ranks)
    return 1 / cut if recipe.shard == "gradients" else 1 / (cut * group_size(recipe, ranks))


def groups_of(recipe: Recipe, ranks: int) -> tuple[int, ...]:
    """Returns the sizes of the groups that a process belongs to; none where it is alone."""
    if ranks == 1:
        return ()
    sharing, inside = sharers(recipe, ranks), group_size(recipe, ranks)
    found = (sharing,) if inside in (1, sharing) else (inside, sharing // inside)
    return (ranks, *(size for size in (*found, ranks // sharing) if 1 < size < ranks))


def alike(
    samples: int | None, lengths: Iterable[int], ranks: int, group: int, tensor_parallel: int = 1
) -> list[list[int]]:
    """Groups the processes into lists whose shares of everything are equally large; the first list has the most.

    `lengths`: dimension 0 of each parameter, which is cut into equal pieces, the last of them smaller or empty.
    `tensor_parallel`: processes beside each other that take the same samples; they hold equal parts of what they cut.
    """
    cuts: set[int] = set()
    lengths = set(lengths)
    for length in lengths | {length // tensor_parallel for length in lengths}:
        piece = max(-(-length // group), 1)
        cuts |= {length // piece, -(-length // piece)}
    places = sorted(cuts)
    found: dict[tuple[int, int], list[int]] = {}
    for number in range(ranks):
        sharer = number // tensor_parallel
        start, end = share_of(samples or 0, ranks // tensor_parallel, sharer)
        found.setdefault((end - start, bisect.bisect_right(places, sharer % group)), []).append(number)
    return list(found.values())


def _is_no_way(value: str) -> bool:
    """Whether a word is neither a way to share nor another tool's name for one, which gets an answer of its own."""
    known = value in ("none", "gradients", "full") or numbered(value, "hybrid") is not None
    return not known and not any(value in words for words in _SPELLINGS)


def _needs_whole_matrices(recipe: Recipe, workload: Workload) -> bool:
    return workload.ranks > 1 and recipe.shard != "none" and (recipe.optimizer or workload.optimizer) in _WHOLE


def _strategies(here: Situation) -> Iterator[Changes]:
    """Those that a plan may try, besides the pinned and the plain one."""
    ranks, gpus = here.workload.ranks, here.workload.gpus
    if ranks == 1:
        return
    yield {"shard": "gradients"}
    if 1 < gpus < ranks:
        yield {"shard": f"hybrid:{gpus}"}
    yield {"shard": "full"}
    if not here.on_cpu:
        yield {"offload_parameters": "all"}
        yield {"shard": "full", "offload_parameters": "all"}


def _refined(recipe: Recipe, workload: Workload) -> Iterator[Changes]:
    if workload.ranks > 1 and splits(recipe, workload):
        yield {"reduce_gradients": "batch"}
    if workload.ranks > 1:
        yield {"reduce_dtype": "bf16"}


_WHOLE = ("adafactor", "muon")
_SPELLINGS = {
    (*SWITCHED_ON, "full-shard", "fsdp", "fsdp2", "zero3", "zero-3", "stage-3"): ("full",),
    tuple(word for word in (*SWITCHED_OFF, "ddp", "no-shard", "replicate") if word != "none"): ("none",),
    ("shard-grad-op", "zero2", "zero-2", "stage-2"): ("gradients",),
    ("hsdp", "hybrid", "hybrid-shard"): ("hybrid:N",),
}
_TOO_FEW = (
    "a batch of {workload.batch_size} cannot be shared by {workload.ranks} GPUs: each needs at least one sample. "
)
_ONCE = "{workload.ranks} GPUs share the batch: "

TECHNIQUE = Technique(
    name="shard",
    fields=("shard", "shard_unit", "reduce_dtype", "reduce_gradients", "offload_parameters"),
    rows=(14, 16),
    level="exact",
    summary="weights, gradients and optimizer state, shared out among GPUs",
    known_as=(
        "fsdp fsdp2 zero zero-1 zero-2 zero-3 ddp data-parallel sharding hsdp multi-gpu distributed fully-shard "
        "reshard-after-forward"
    ),
    free_word="known way to share",
    spellings=_SPELLINGS,
    meanings={"full": "all shared out, collected twice", "gradients": "collected once", "hybrid:N": "in groups of N"},
    rules={
        "shard is {recipe.shard!r}; give none, gradients, full or hybrid:N with the number of GPUs in a group.": lambda r: (
            _is_no_way(r.shard)
        ),
        "shard='hybrid:1' leaves each GPU everything; that is shard='none'.": lambda r: (
            numbered(r.shard, "hybrid") == 1
        ),
        "shard_unit is {recipe.shard_unit!r}; give blocks or size:N with a number of parameters.": lambda r: (
            r.shard_unit != "blocks" and numbered(r.shard_unit, "size") is None
        ),
        "offload_parameters='all' keeps shares on the host, and shard='none' makes none. Use shard='full'.": lambda r: (
            r.offload_parameters == "all" and r.shard == "none"
        ),
        "offload_parameters='all' has the update on the host already; leave offload_optimizer out.": lambda r: (
            r.offload_parameters == "all" and r.offload_optimizer
        ),
        "reduce_gradients='batch' keeps the gradients of the whole model, and step_in_backward frees each as it comes. "
        "Leave one of them out.": lambda r: r.reduce_gradients == "batch" and r.step_in_backward,
    },
    misfits={
        "shard={recipe.shard!r} makes groups that {workload.ranks} GPUs cannot be divided into; give a divisor of "
        "{workload.ranks}.": lambda r, w: r.tensor_parallel == 1 and w.ranks % (numbered(r.shard, "hybrid") or 1) != 0,
        _TOO_FEW + "Give a larger batch or fewer GPUs.": lambda r, w: r.tensor_parallel == 1 and w.least_group is None,
        _TOO_FEW
        + "Give a larger batch or fewer GPUs, or tensor_parallel={workload.least_group}: so many take the same "
        "samples then.": lambda r, w: r.tensor_parallel == 1 and (w.least_group or 1) > 1,
        "{workload.optimizer} looks at whole matrices, which shard={recipe.shard!r} cuts. Use shard='none', or another "
        "optimizer.": _needs_whole_matrices,
    },
    lowers={
        _ONCE + "batch norm takes its statistics from each share.": (
            "different",
            lambda r, w: w.ranks > 1 and w.batch_norm,
        ),
        _ONCE + "dropout draws other masks than for the whole batch.": (
            "different",
            lambda r, w: w.ranks > 1 and w.dropout,
        ),
        _ONCE + "its loss is not the weighted sum of the losses of its shares.": (
            "different",
            lambda r, w: w.ranks > 1 and bool(w.coupled_samples),
        ),
        "gradients of several GPUs are added up in 16 bits; reduce_dtype=fp32 keeps them.": (
            "rounding",
            lambda r, w: w.ranks > 1 and _added_in_16_bits(r),
        ),
    },
    in_the_loop="share the batch and the model out there, or train by snugfit.prepare",
    planning=Planning(
        strategies=_strategies,
        refined=_refined,
        off=lambda _, plan: "one GPU trains, and has nobody to share with" if plan.workload.ranks == 1 else "",
        because="no two simulated recipes differ in it alone",
        quiet=True,
    ),
    example="it needs several GPUs; `benchmarks/ranks.py` measures it on several processes.",
)


def _added_in_16_bits(recipe: Recipe) -> bool:
    return recipe.reduce_dtype == "bf16" or (recipe.reduce_dtype == "as-is" and recipe.true_precision is not None)
