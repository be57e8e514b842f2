"""Tensor parallelism: groups of GPUs take the same samples, and each holds and computes a part of every large layer.

In a pair of linear layers the first is cut by its outputs and the second by its inputs, so that what lies between them
(activation function, dropout, attention heads) is cut, too, and nobody needs the other parts of it: weights, gradients,
optimizer state and the activations between the two are divided by the degree. What each GPU has of the second layer's sums
is added up among the group in forward, and in backward what each has of the gradient of the first layer's input, once for
layers that share it (q, k and v; gate and up); nothing can be computed meanwhile: keep a group inside of one machine, and
small. Embeddings, norms, head, and residuals are whole on each.

It is for what sharing the batch cannot do: a layer or a sample that is too large for one GPU, or more GPUs than samples.
`shard` goes with it, among the GPUs of all groups that hold the same part. A plan turns to it where there are fewer samples
than GPUs, and where nothing else fits.

What is cut: the plan that a model brings (transformers' `tp_plan`); else, in the model's blocks, linear layers that feed a
later one element by element, or head by head. That is tried on small numbers instead of read off names: each part of a block
must come out as its part of the whole. Attention whose q, k and v are one matrix stays whole; its block's MLP is cut.

Dropout between layers that are cut draws masks of its own on each GPU of a group, and the same ones on all behind them:
each GPU's generator is moved to a state made of the common one and its part's number, and on to another common one. In a
loop of your own, seed the processes of a group alike; where they are not, the first step says so.

Fidelity: exact (sums in another order); dropout draws other masks than on one. Source: Shoeybi et al., Megatron-LM, 2019
(arXiv:1909.08053); carried out by torch's `parallelize_module`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from snugfit.techniques.batch_share import largest_share, sharers
from snugfit.techniques.declaration import Technique
from snugfit.techniques.planning import Changes, Planning
from snugfit.techniques.shard import numbered

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """How layers are cut."""

    tensor_parallel: int = 1
    """Several GPUs: how many take the same samples, each with its part of the large layers; 1: each takes its own."""


def _cuts(recipe: Recipe, workload: Workload) -> bool:
    return recipe.tensor_parallel > 1 and workload.ranks > 1


def _uneven(recipe: Recipe, workload: Workload) -> bool:
    return _cuts(recipe, workload) and workload.ranks % recipe.tensor_parallel != 0


def _no_such_groups(recipe: Recipe, workload: Workload) -> bool:
    return _cuts(recipe, workload) and sharers(recipe, workload.ranks) % (numbered(recipe.shard, "hybrid") or 1) != 0


def _last_resort(recipe: Recipe, workload: Workload) -> Iterator[Changes]:
    """Larger and larger groups of GPUs in a machine: each needs fewer samples and holds less of every layer."""
    for number in range(recipe.tensor_parallel + 1, workload.gpus + 1):
        if workload.gpus % number == 0:
            yield {"tensor_parallel": number}


def _refined(recipe: Recipe, workload: Workload) -> Iterator[Changes]:
    """Worth a try where the batch cannot be shared further: each GPU has one sample at a time already."""
    one_at_a_time = 1 in (recipe.microbatch_size, largest_share(recipe, workload))
    if recipe.tensor_parallel == 1 and recipe.shard != "none" and workload.gpus % 2 == 0 and one_at_a_time:
        yield {"tensor_parallel": 2}


_CUT = "tensor_parallel={recipe.tensor_parallel} cuts layers among GPUs"

TECHNIQUE = Technique(
    name="tensor_parallel",
    fields=("tensor_parallel",),
    rows=(14, 16),
    level="exact",
    summary="weights, their gradients and state, and activations inside of layers, divided among GPUs",
    known_as="tp model-parallel tensor-parallelism intra-layer megatron parallelize-module dtensor colwise rowwise",
    rules={
        "tensor_parallel is {recipe.tensor_parallel}; give a number of GPUs, 1 for none.": lambda r: (
            r.tensor_parallel < 1
        ),
        _CUT + ", and an adapter's matrices beside them are not cut with them. Use shard='full', which goes with "
        "adapter={recipe.adapter!r}.": lambda r: r.tensor_parallel > 1 and r.adapter != "none",
        _CUT + ", and packed weights (quantize={recipe.quantize!r}) cannot be cut. Use shard='full'.": lambda r: (
            r.tensor_parallel > 1 and r.quantize != "none"
        ),
    },
    misfits={
        "tensor_parallel={recipe.tensor_parallel} does not divide {workload.ranks} GPUs into groups; give a divisor of "
        "{workload.ranks}.": _uneven,
        "tensor_parallel={recipe.tensor_parallel} makes groups that do not fit into a machine of {workload.gpus} GPUs; give "
        "a divisor of {workload.gpus}.": lambda r, w: (
            _cuts(r, w) and not _uneven(r, w) and w.nodes > 1 and w.gpus % r.tensor_parallel != 0
        ),
        "shard={recipe.shard!r} makes groups that {workload.ranks} GPUs cannot be divided into beside "
        "tensor_parallel={recipe.tensor_parallel}; give a divisor of {workload.ranks} / {recipe.tensor_parallel}.": (
            _no_such_groups
        ),
        "a batch of {workload.batch_size} cannot be shared by {workload.ranks} GPUs in groups of {recipe.tensor_parallel}: "
        "each group needs at least one sample. Give a larger batch, fewer GPUs or larger groups.": lambda r, w: (
            _cuts(r, w) and w.batch_size is not None and w.batch_size < sharers(r, w.ranks)
        ),
        "microbatch_size {recipe.microbatch_size} is larger than the share of the batch of {workload.batch_size} that a "
        "group of {recipe.tensor_parallel} of {workload.ranks} GPUs takes; give less.": lambda r, w: (
            _cuts(r, w) and (r.microbatch_size or 0) > (largest_share(r, w) or float("inf"))
        ),
        "{workload.optimizer} looks at whole matrices, which tensor_parallel={recipe.tensor_parallel} cuts. Use another "
        "optimizer.": lambda r, w: _cuts(r, w) and (r.optimizer or w.optimizer) in ("adafactor", "muon"),
        "offload_parameters='all' needs GPUs that share out what they hold, and tensor_parallel={recipe.tensor_parallel} "
        "leaves one group of {workload.ranks}. Use a smaller degree.": lambda r, w: (
            _cuts(r, w) and r.offload_parameters == "all" and sharers(r, w.ranks) == 1
        ),
    },
    lowers={
        _CUT + ": dropout draws other masks than on one.": (
            "different",
            lambda r, w: _cuts(r, w) and w.dropout,
        ),
    },
    in_the_loop="cut the model there, or train by snugfit.prepare",
    reads_weights=True,
    hooks="snugfit.techniques.tensor_parallel.apply:TensorParallel",
    planning=Planning(
        last_resort=_last_resort,
        refined=_refined,
        off=lambda _, plan: "one GPU trains, and has nobody to share with" if plan.workload.ranks == 1 else "",
        because="no two simulated recipes differ in it alone",
        quiet=True,
    ),
    example="it needs several GPUs; `benchmarks/ranks.py` measures it on several processes",
)
