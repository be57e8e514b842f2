"""Activation modules that overwrite their input, where autograd allows it."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch.fx
from torch import nn

from snugfit.errors import warn
from snugfit.private_torch import ConvNd, NormBase
from snugfit.techniques.base import ModelTechnique

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

GAINING = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.Dropout, nn.Dropout2d, nn.Dropout3d)
"""Functions whose in-place form keeps nothing but their output or a mask."""
_PRODUCERS = (nn.Linear, ConvNd, NormBase, nn.GroupNorm, nn.LayerNorm)
"""Layers whose backward does not read their output."""
_own: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
"""Module whose `inplace` a recipe has set -> the model's own choice."""


class InPlace(ModelTechnique):
    """Switches activation modules to their in-place form where that is proved safe."""

    field = "inplace"

    def change(self, model: nn.Module) -> None:
        """Switches the modules; warns when there is none."""
        safe = safe_modules(model)
        for module in safe:
            set_inplace(module, True)
        if not safe:
            warn(
                f"inplace has no effect on {type(model).__name__}: no ReLU, LeakyReLU, ELU or Dropout module stands alone "
                "behind a linear, convolution or norm layer (or all are in place already)."
            )

    @classmethod
    def may_gain(cls, model: nn.Module) -> bool:
        """Returns whether a model has any activation that could overwrite its input, without the proof that it may."""
        return any(
            type(module) in GAINING and not module.inplace and getattr(module, "p", 1.0) > 0
            for module in model.modules()
        )

    @classmethod
    def comes_off(cls, old: Recipe, new: Recipe) -> bool:
        """Returns whether other activations may overwrite; the proof that they may takes a trace, so not every time."""
        # Selective checkpointing forbids the model's own in-place activations.
        return old.inplace != new.inplace or "selective" in (old.checkpoint, new.checkpoint)

    @classmethod
    def undo(cls, model: nn.Module) -> None:
        """Gives activation modules the choice back that the model itself has made."""
        for module in model.modules():
            if module in _own:
                setattr(module, "inplace", _own.pop(module))  # noqa: B010 - Module declares no such attribute


def set_inplace(module: nn.Module, value: bool) -> None:
    """Makes an activation module overwrite its input, or not, until `InPlace.undo`.

    Args:
        module: A module with an `inplace` attribute.
        value: Whether it overwrites its input.
    """
    _own.setdefault(module, module.inplace)  # type: ignore[arg-type]
    setattr(module, "inplace", value)  # noqa: B010 - Module declares no such attribute


def safe_modules(model: nn.Module) -> list[Any]:
    """Returns the activation modules that may overwrite their input and do not yet.

    Args:
        model: Any module.

    Returns:
        The modules, each once.
    """
    candidates = {module for module in model.modules() if type(module) in GAINING and not module.inplace}
    if not candidates:
        return []
    verdicts: dict[nn.Module, bool] = {}
    with torch.random.fork_rng(devices=()):
        for part, graph in _graphs(model, _without_memory(model)):
            modules = dict(part.named_modules())
            for node in graph.nodes:
                if node.op == "call_module" and modules[str(node.target)] in candidates:
                    module = modules[str(node.target)]
                    verdicts[module] = verdicts.get(module, True) and _overwrites_alone(node, modules)
    return [module for module, safe in verdicts.items() if safe]


def _overwrites_alone(node: torch.fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether the only input of a call comes straight from a producer, and nobody else sees it."""
    source = node.args[0] if node.args else None
    if not isinstance(source, torch.fx.Node) or source.op != "call_module" or len(source.users) != 1:
        return False
    producer = modules[str(source.target)]
    return isinstance(producer, _PRODUCERS) and not producer._forward_hooks  # a hook may keep the output


def _without_memory(model: nn.Module) -> nn.Module | None:
    """A copy of the model on the meta device, or None where it cannot be copied."""
    tensors = [*model.parameters(), *model.buffers()]
    try:
        return copy.deepcopy(model, {id(tensor): _on_meta(tensor) for tensor in tensors})
    except Exception:  # anything a user's class may raise on being copied
        return None


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    empty = tensor.detach().to("meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def _graphs(model: nn.Module, shadow: nn.Module | None) -> Iterator[tuple[nn.Module, torch.fx.Graph]]:
    """Traces the model, or the largest parts of it that can be traced."""
    if shadow is None:
        return
    try:
        yield model, torch.fx.Tracer().trace(shadow)
    except Exception:  # anything a user's forward may raise on symbolic values
        yield from _graphs_inside(model, shadow)


def _graphs_inside(model: nn.Module, shadow: nn.Module) -> Iterator[tuple[nn.Module, torch.fx.Graph]]:
    for child, child_shadow in zip(model.children(), shadow.children(), strict=True):
        if isinstance(child, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            yield from _graphs_inside(child, child_shadow)
        else:
            yield from _graphs(child, child_shadow)
