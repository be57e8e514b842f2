"""Embeddings whose gradients are sparse (`sparse=True`): which there are, and what of a recipe goes with them.

torch's SGD takes sparse gradients one parameter at a time, without weight decay; of its other optimizers SparseAdam (for
a model of nothing but such embeddings) and Adagrad do, which are given as a function.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from snugfit.errors import InputError
from snugfit.recipe import Recipe
from snugfit.workload import Workload


def sparse_embeddings(model: nn.Module) -> dict[str, nn.Embedding | nn.EmbeddingBag]:
    """Returns the embeddings with sparse gradients by name, without frozen ones."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad
    }


def check_sparse(model: nn.Module, recipe: Recipe, workload: Workload, *, named_optimizer: bool) -> bool:
    """Returns whether a model makes sparse gradients; `InputError` where optimizer or recipe cannot take them."""
    found = sparse_embeddings(model)
    if not found:
        return False
    wrong = list(_contradictions(recipe, workload, named_optimizer))
    if wrong:
        raise InputError(
            f"the gradients of {', '.join(found)} are sparse (sparse=True), and {' and '.join(wrong)}. Use optimizer='sgd' "
            "without these, a function that makes torch.optim.SparseAdam or Adagrad, or build the embedding without sparse."
        )
    return True


def _contradictions(recipe: Recipe, workload: Workload, named: bool) -> Iterator[str]:
    name = recipe.optimizer or (workload.optimizer if named else None)
    if name is not None and name != "sgd":
        yield f"{name} takes dense gradients only"
    if named and workload.weight_decay:
        yield "SGD's weight_decay does not go with them"
    if workload.clip_norm is not None:
        yield "clip_norm does not"
    if recipe.optimizer_impl in ("fused", "foreach"):
        yield f"optimizer_impl={recipe.optimizer_impl} does not"
    if recipe.accumulate_dtype == "fp32":
        yield "accumulate_dtype=fp32 does not"
    if recipe.precision == "16-mixed":
        yield "precision=16-mixed does not"
    if workload.ranks > 1 and recipe.shard != "none":
        yield f"shard={recipe.shard} does not (use shard=none)"
    for field in ("step_in_backward", "offload_optimizer", "stochastic_rounding"):
        if getattr(recipe, field):
            yield f"{field} does not"
