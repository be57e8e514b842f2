"""Weights with an adapter added, computed beside the model, layer by layer: the model itself is left as it is.

Peft does the sum, in a copy of its layer that holds the values to be merged: the model's own, those that several processes
have collected, or those of a file, while the model has none at all.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from snugfit.errors import InputError


def adapted_everywhere(model: nn.Module) -> dict[str, Any]:
    """Returns the layers with an adapter beside them, a shared one under each of its names.

    Of several adapters around one another (beside stacks of the same experts) it is the outermost.
    """
    every = {name: one for name, one in model.named_modules(remove_duplicate=False) if hasattr(one, "lora_A")}
    return {name: one for name, one in every.items() if not name.endswith(".base_layer")}


def tensor_names(name: str, layer: Any) -> tuple[list[str], list[str]]:
    """Returns the names an adapted layer has in `state_dict`: the plain model's tensors, then the adapter's."""
    adapter = {f"{name}.{part}." for part in layer._modules}
    every = layer.state_dict(prefix=f"{name}.", keep_vars=True)
    ours = [key for key in every if key.startswith(tuple(adapter))]
    return [key for key in every if key not in ours], ours


def merged_weights(name: str, layer: Any, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a layer's tensors under the plain model's names, its adapter added; `InputError` if that is not finite.

    `layer`: peft's layer, on any device; it is not changed.
    `values`: the tensors of `tensor_names`, whole, on one device.
    """
    assert not any(value.is_meta for value in values.values()), name  # peft would add nothing, without a word
    twin = outer = _with_values(layer, f"{name}.", f"{name}.", values)
    try:
        while hasattr(outer, "lora_A"):
            outer.merge(safe_merge=True)
            outer = outer.base_layer
    except ValueError as error:
        raise InputError(f"the adapter of {name!r} cannot be merged: {error}.") from error
    return {f"{name}.{key}": value for key, value in twin.get_base_layer().state_dict().items()}


def _with_values(module: nn.Module, plain: str, path: str, values: Mapping[str, Tensor]) -> Any:
    """A module of the same kind and settings with other values; what it keeps in tables of its own is its own, too.

    The plain model knows nothing of adapters in between, so what is inside of one has two paths: the plain model's, and that
    of the next adapter inside.
    """
    twin = copy.copy(module)
    vars(twin).update({name: copy.copy(one) for name, one in vars(twin).items() if isinstance(one, dict | list)})
    for name, weight in twin._parameters.items():
        if weight is not None:
            twin._parameters[name] = nn.Parameter(values[plain + name].detach(), requires_grad=False)
    for name, part in twin._modules.items():
        if part is not None:
            inside = f"{path if hasattr(module, 'lora_A') else plain}{name}."
            twin._modules[name] = _with_values(part, plain if name == "base_layer" else inside, inside, values)
    return twin
