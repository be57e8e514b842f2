"""What a parameter is for, where optimizers treat it apart: embeddings and output heads.

Both are found by structure, never by the model's name. A weight that is an embedding and a head at once (tied) is both.
"""

from __future__ import annotations

from torch import nn


def embedding_weights(model: nn.Module) -> set[nn.Parameter]:
    """Returns the tables of all embeddings.

    Args:
        model: Any module.

    Returns:
        The weights of its `nn.Embedding` and `nn.EmbeddingBag` layers, kinds derived from them included.
    """
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag))
    return {weight for table in tables for weight in table.parameters(recurse=False)}


def head_weights(model: nn.Module) -> set[nn.Parameter]:
    """Returns the weights of the output layer.

    Args:
        model: Any module.

    Returns:
        Those of `get_output_embeddings()` where the model names its output layer so (transformers), else those of the
        last `nn.Linear` in the order of its modules; empty where there is none.
    """
    named = getattr(model, "get_output_embeddings", None)
    head = named() if callable(named) else None
    if not isinstance(head, nn.Module):
        head = next((module for module in reversed(list(model.modules())) if isinstance(module, nn.Linear)), None)
    return set() if head is None else set(head.parameters(recurse=False))
