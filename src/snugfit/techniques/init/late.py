"""Weights that come one by one: parameters without memory that know where their values are.

A model whose weights are packed, or held in 16 bits, would else be built whole in float32 on the host first. Here a layer's
values are read from the file, or drawn, at the moment when it is packed, or moved to where it lives; the host then holds
what is final there, and one layer. In a simulation the same happens with fake values.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from snugfit.expert_stacks import is_stack

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

_SOURCE, _STORED = "snugfit_source", "snugfit_stored"


def await_values(parameter: Tensor, read: Callable[[], Tensor], *, stored: bool) -> None:
    """Marks a parameter on meta as awaited: records where its values will come from.

    `read`: returns them on the host, in memory of their own, in any dtype.
    `stored`: whether they are in a file; otherwise they are drawn.
    """
    setattr(parameter, _SOURCE, read)
    setattr(parameter, _STORED, stored)


def is_awaited(tensor: Tensor) -> bool:
    """Returns whether a tensor has no memory yet but knows where its values are."""
    return tensor.is_meta and hasattr(tensor, _SOURCE)


def comes_late(model: nn.Module, recipe: Recipe) -> bool:
    """Returns whether weights come one by one under a recipe: where they are packed, or read from a file and cast."""
    awaited = [weight for weight in model.parameters() if is_awaited(weight)]
    cast = recipe.true_precision is not None and recipe.init == "host"
    return bool(awaited) and (recipe.quantize != "none" or (cast and all(getattr(one, _STORED) for one in awaited)))


def values_of(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Returns the values of a tensor; those of an awaited one are read, or drawn, now.

    `dtype`: dtype of what is read; None: the tensor's.
    """
    read: Callable[[], Tensor] | None = getattr(tensor, _SOURCE, None) if tensor.is_meta else None
    return tensor.detach() if read is None else read().detach().to(dtype or tensor.dtype)


@torch.no_grad()
def bring(model: nn.Module, device: torch.device, dtype: torch.dtype | None) -> None:
    """Gives the awaited parameters of a model their memory and values, one after the other; what is tied stays tied.

    `dtype`: their dtype; None: their own.
    """
    made: dict[Tensor, nn.Parameter] = {}
    for module in model.modules():
        for name, waiting in module._parameters.items():
            if waiting is not None and is_awaited(waiting):
                if waiting not in made:
                    final = dtype if waiting.is_floating_point() else None
                    made[waiting] = nn.Parameter(values_of(waiting, final).to(device), waiting.requires_grad)
                module._parameters[name] = made[waiting]


def drawn_alone(module: nn.Module, weight: Tensor) -> bool:
    """Returns whether a parameter's layer can draw it on demand; true for the kinds that hold most weights."""
    return isinstance(module, nn.Linear | nn.Embedding) or is_stack(module, weight)


def await_draws(model: Any, *, without_values: bool = False) -> bool:
    """Makes linear layers, embeddings and experts of a transformers model draw their values on demand.

    `without_values`: whether memory of their size and dtype stands for what would be drawn.
    Returns whether that holds for all of them; False where something beside the layer itself has a hand in its values.
    """
    reads: dict[nn.Parameter, Callable[[], Tensor]] = {}
    written: set[int] = set()
    for weight, module, owner in _with_owners(model):
        if weight.is_meta and drawn_alone(module, weight):
            name = next(key for key, value in module._parameters.items() if value is weight)
            # How often the whole model has written into the weight when it was initialised, against the layer alone:
            # the same number for all only where nothing else has a rule for some of them.
            written.add(weight._version - _drawn(module, name, owner, "meta")._version)
            reads[weight] = functools.partial(_drawn, module, name, owner, "cpu")
            if without_values:
                reads[weight] = functools.partial(torch.empty, weight.shape, dtype=weight.dtype, device="cpu")
    if len(written) != 1:  # some were written to more often: by a rule for all layers of a depth, or another's values
        return False
    for weight, read in reads.items():
        await_values(weight, read, stored=False)
    return True


def _with_owners(model: Any) -> Iterator[tuple[nn.Parameter, nn.Module, Any]]:
    """Every parameter, the module it belongs to first, and the nearest model that says how such modules are initialised."""
    owners: dict[str, Any] = {}
    seen: set[nn.Parameter] = set()
    for path, module in model.named_modules():
        above = owners.get(path.rpartition(".")[0], model)
        owners[path] = module if hasattr(module, "_init_weights") else above
        for weight in module._parameters.values():
            if weight is not None and weight not in seen:
                seen.add(weight)
                yield weight, module, owners[path]


@torch.no_grad()
def _drawn(module: nn.Module, name: str, owner: Any, device: str) -> nn.Parameter:
    """Fresh values of one parameter, drawn by its module and the model; its siblings get no memory meanwhile."""
    # A shallow copy with parameters of its own: `reset_parameters` and `_init_weights` write into these only.
    twin = copy.copy(module)
    twin._parameters = {
        key: None
        if value is None
        else nn.Parameter(torch.empty(value.shape, dtype=value.dtype, device=device if key == name else "meta"))
        for key, value in module._parameters.items()
    }
    getattr(twin, "reset_parameters", lambda: None)()
    owner._init_weights(twin)
    weight = twin._parameters[name]
    assert weight is not None
    return weight
