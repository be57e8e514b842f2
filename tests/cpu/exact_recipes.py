"""Recipes of the exact techniques, alone and in pairs, for tests that hold them against plain training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import snugfit
from snugfit import Recipe, RecipeError

EXACT: dict[str, dict[str, Any]] = {
    "microbatch": {"microbatch_size": 4},
    "checkpoint_all": {"checkpoint": "all"},
    "checkpoint_every": {"checkpoint": "every:2"},
    "checkpoint_blocks": {"checkpoint": "blocks:1"},
    "checkpoint_selective": {"checkpoint": "selective"},
    "offload_activations": {"offload_activations": "all"},
    "offload_checkpoints": {"offload_activations": "checkpoints", "checkpoint": "all"},
    "offload_optimizer": {"offload_optimizer": True},
    "step_in_backward": {"step_in_backward": True},
    "foreach": {"optimizer_impl": "foreach"},
    "fused": {"optimizer_impl": "fused"},
    "for_loop": {"optimizer_impl": "for-loop"},
    "inplace": {"inplace": True},
    "eager": {"attention": "eager"},
    "sdpa": {"attention": "sdpa"},
    "compile": {"compile": "aot_eager"},
}


def pairs(exact: dict[str, dict[str, Any]] = EXACT) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields names and fields of all pairs that do not set one field to two values."""
    for (first, one), (second, other) in itertools.combinations(exact.items(), 2):
        if all(one[field] == other[field] for field in one.keys() & other.keys()):
            yield f"{first}+{second}", one | other


def allowed(model: str, fields: dict[str, Any], samples: int) -> bool:
    """Whether a recipe exists, and is exact on one of `small_models`: microbatches change batch statistics and masks."""
    if "microbatch_size" in fields and model in ("cnn", "vit"):
        return False
    try:
        recipe = Recipe(**fields)
        snugfit.fidelity(recipe, snugfit.Workload(batch_size=samples))
    except RecipeError:
        return False
    return True
