"""Sparse gradients of embeddings (`sparse=True`), which simulated tensors cannot hold.

They are simulated as dense ones, the size of the weight: the most that they can take, and the estimate says so. (A sparse
gradient holds a row for each index of the batch.)
"""

from __future__ import annotations

from typing import Any

import torch

from snugfit.errors import CannotSimulateError

_SPARSE_ARGUMENT = {"aten.embedding.default": 4, "aten._embedding_bag.default": 5}


def without_sparse_gradients(model: torch.nn.Module) -> tuple[str, ...]:
    """Makes a skeleton's embeddings give dense gradients, in place; returns what the estimate says about it."""
    from snugfit.workloads.sparse_weights import sparse_embeddings

    found = sparse_embeddings(model)
    for module in found.values():
        module.sparse = False
    if not found:
        return ()
    return (f"sparse gradients ({', '.join(found)}) were counted as dense ones, which is the most that they can take",)


def refuse_sparse(operator: str, args: Any, kwargs: dict[str, Any]) -> None:
    """Raises `CannotSimulateError` for a lookup whose gradient would be sparse: it would crash the process."""
    position = _SPARSE_ARGUMENT.get(operator)
    if position is None or not torch.is_grad_enabled():
        return
    if args[position] if len(args) > position else kwargs.get("sparse", False):
        raise CannotSimulateError(
            "a lookup with sparse=True was called as a function or by a script, and sparse gradients cannot be simulated. "
            "Leave sparse=True out of the simulated code, with Adam in place of SparseAdam: the dense gradient is the most "
            "that the sparse one can take."
        )
