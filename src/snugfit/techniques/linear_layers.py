"""The linear layers of a model, found by structure: which take adapters, which make up the head; and its embeddings.

A *language model's head* turns the last hidden state into a score for each token: what `get_output_embeddings()` returns
(transformers), or the last linear layer whose weight has the shape of an embedding's table. A *classifier's head* turns it
into a score for each class. In transformers it is all that stands beside the base model, because just that is new when a
base model is loaded; in timm what `get_classifier()` returns; elsewhere the last linear layer, when it has as many outputs
as the model has classes (`num_classes`, `num_labels`) or a name that says so.

The projections inside `nn.MultiheadAttention` are left out: that module reads their weights and never calls them, so
nothing that stands beside them would run.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections import Counter

from torch import nn

from snugfit.techniques.blocks import find_blocks

_HEAD_NAME = re.compile(r"(.*_)?(classifier|score|heads?|fc)")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LinearLayers:
    """The linear layers of a model."""

    body: dict[str, nn.Module]
    """Name -> layer: all but the head's. Shared ones once."""
    classifier: dict[str, nn.Module]
    """Name -> module: the parts of a classifier's head; empty for a language model and where none was found."""
    output: dict[str, nn.Module]
    """Name -> layer: a language model's head; at most one."""


def linear_layers(model: nn.Module) -> LinearLayers:
    """Finds the linear layers of a model, sorted by what they are for; works with adapters in place, too."""
    modules = dict(model.named_modules())
    inside = {id(child) for module in modules.values() if _owns_its_projections(module) for child in module.modules()}
    layers = {
        name: module
        for name, module in modules.items()
        if name and is_linear(module) and id(module) not in inside and not _is_part_of_adapter(name)
    }
    output = _output_layer(model, modules, layers)
    classifier = {} if output else _classifier(model, modules, layers)
    head = {id(part) for module in (*output.values(), *classifier.values()) for part in module.modules()}
    body = {name: layer for name, layer in layers.items() if id(layer) not in head}
    return LinearLayers(body=body, classifier=classifier, output=output)


def is_linear(module: nn.Module) -> bool:
    """Returns whether a module multiplies by one matrix: `nn.Linear`, or the `Conv1D` of transformers' GPT-2."""
    conv1d = getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)
    return isinstance(module, nn.Linear) or (conv1d is not None and isinstance(module, conv1d))


def tied_weights(model: nn.Module) -> set[nn.Parameter]:
    """Returns the parameters that several modules own."""
    owners = Counter(
        weight for module in model.modules() for weight in module._parameters.values() if weight is not None
    )
    return {weight for weight, count in owners.items() if count > 1}


def _owns_its_projections(module: nn.Module) -> bool:
    return isinstance(module, nn.MultiheadAttention)


def _is_part_of_adapter(name: str) -> bool:
    """Whether a layer is an adapter's own matrix; the frozen layer under an adapter is not."""
    return any(part.startswith("lora_") for part in name.split("."))


def _output_layer(
    model: nn.Module, modules: dict[str, nn.Module], layers: dict[str, nn.Module]
) -> dict[str, nn.Module]:
    named = getattr(model, "get_output_embeddings", None)
    if callable(named):
        found = named()
        return {name: module for name, module in modules.items() if found is not None and module is found}
    last = next(reversed(layers.items()), None)
    if last is None or not isinstance(last[1], nn.Linear):
        return {}
    shape = (last[1].out_features, last[1].in_features)
    tables = (module for module in modules.values() if isinstance(module, nn.Embedding))
    return dict([last]) if any((table.num_embeddings, table.embedding_dim) == shape for table in tables) else {}


def _classifier(model: nn.Module, modules: dict[str, nn.Module], layers: dict[str, nn.Module]) -> dict[str, nn.Module]:
    base = getattr(model, str(getattr(model, "base_model_prefix", "") or ""), None)
    if isinstance(base, nn.Module):  # transformers
        return {
            name: child
            for name, child in model.named_children()
            if child is not base and any(True for _ in child.parameters())
        }
    named = getattr(model, "get_classifier", None)
    if callable(named):  # timm; two of them where a teacher is distilled
        found = named()
        parts = found if isinstance(found, tuple | list) else (found,)
        return {
            name: module
            for name, module in modules.items()
            if module in parts and any(True for _ in module.parameters())
        }
    if not layers:
        return {}
    name, last = next(reversed(layers.items()))
    classes = getattr(model, "num_classes", None) or getattr(model, "num_labels", None)
    in_block = any(name.startswith(block + ".") for block in find_blocks(model))
    says_so = not in_block and any(_HEAD_NAME.fullmatch(part) for part in name.split("."))
    return {name: last} if says_so or (classes and getattr(last, "out_features", None) == classes) else {}


def embedding_weights(model: nn.Module) -> set[nn.Parameter]:
    """Returns the weights of all `nn.Embedding` and `nn.EmbeddingBag` layers, subclasses included."""
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag))
    return {weight for table in tables for weight in table.parameters(recurse=False)}


def head_weights(model: nn.Module) -> set[nn.Parameter]:
    """Returns the weights of `get_output_embeddings()`, else of the last `nn.Linear`; none where there is neither."""
    named = getattr(model, "get_output_embeddings", None)
    head = named() if callable(named) else None
    if not isinstance(head, nn.Module):
        head = next((module for module in reversed(list(model.modules())) if isinstance(module, nn.Linear)), None)
    return set() if head is None else set(head.parameters(recurse=False))
