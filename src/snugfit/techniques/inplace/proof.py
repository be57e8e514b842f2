"""Which activation modules may overwrite their input: proved by a symbolic trace, of which nothing is left."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any

import torch.fx
from torch import nn

from snugfit.private_torch import ConvNd, NormBase
from snugfit.techniques.forward_state import ForwardState

GAINING = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.Dropout, nn.Dropout2d, nn.Dropout3d)
"""Functions whose in-place form keeps nothing but their output or a mask."""
_PRODUCERS = (nn.Linear, ConvNd, NormBase, nn.GroupNorm, nn.LayerNorm)
"""Layers whose backward does not read their output."""


@dataclasses.dataclass(frozen=True, slots=True)
class Proof:
    """Why one activation module may overwrite its input while the traced part of the model runs."""

    part: nn.Module
    """The module whose forward method was traced."""
    sources: tuple[str, ...]
    """Names, in the part, of the layers whose output is overwritten."""
    watched: tuple[nn.Module, ...]
    """Modules whose hooks would see that output."""


def proofs(model: nn.Module) -> dict[nn.Module, Proof]:
    """Returns the activation modules that may overwrite their input and do not yet, each with its proof."""
    candidates = {module for module in model.modules() if could_overwrite(module)}
    if not candidates:
        return {}
    found: dict[nn.Module, Proof | None] = {}
    state = ForwardState(model)
    before = state.take()
    with torch.random.fork_rng(devices=()):
        try:
            for part, graph, kept in _graphs(model, _without_memory(model)):
                modules = dict(part.named_modules())
                for node in graph.nodes:
                    module = modules.get(str(node.target)) if node.op == "call_module" else None
                    if module in candidates:
                        proof = _proof(node, part, modules, kept)
                        found[module] = _joined(found[module], proof) if module in found else proof
        finally:
            state.learn(before, ())  # the code may have drawn numbers, and given symbols to lists of its own
    if state.draws():
        return {}  # the next pass may go another way
    return {module: proof for module, proof in found.items() if proof is not None}


def could_overwrite(module: Any) -> bool:
    """Returns whether torch could let this activation overwrite its input, and does not yet.

    A leaky ReLU with a negative slope cannot: its backward needs the input's sign.
    """
    if type(module) not in GAINING or module.inplace:
        return False
    return bool(getattr(module, "negative_slope", 0.0) >= 0 and getattr(module, "alpha", 0.0) >= 0)


def _proof(
    node: torch.fx.Node, part: nn.Module, modules: dict[str, nn.Module], kept: set[torch.fx.Node]
) -> Proof | None:
    """On what grounds a call may overwrite: its only input comes from a producer, and nobody else looks at it or has it."""
    source = node.args[0] if node.args else None
    if not isinstance(source, torch.fx.Node) or source.op != "call_module" or len(source.users) != 1 or source in kept:
        return None
    producer = modules[str(source.target)]
    if not isinstance(producer, _PRODUCERS) or "forward" in vars(producer):  # a trace does not go into torch's layers
        return None
    ends = str(source.target), str(node.target)
    # A hook on any module that one of the two is in and the other is not could see the value on its way.
    here, there = (_ancestors(name) for name in ends)
    return Proof(part, ends[:1], tuple(modules[name] for name in sorted(here ^ there | set(ends))))


def _joined(one: Proof | None, other: Proof | None) -> Proof | None:
    if one is None or other is None or one.part is not other.part:
        return None
    return Proof(one.part, one.sources + other.sources, tuple(dict.fromkeys(one.watched + other.watched)))


def _ancestors(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:number]) for number in range(1, len(parts) + 1)}


def _without_memory(model: nn.Module) -> nn.Module | None:
    """A copy of the model on the meta device, without hooks, or None where it cannot be copied."""
    tensors = [*model.parameters(), *model.buffers()]
    try:
        shadow = copy.deepcopy(model, {id(tensor): _on_meta(tensor) for tensor in tensors})
    except Exception:  # anything a user's class may raise on being copied
        return None
    for module in shadow.modules():
        module._forward_hooks.clear()  # they get their say when they run
        module._forward_pre_hooks.clear()
    return shadow.train()


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    empty = tensor.detach().to("meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


class _Tracer(torch.fx.Tracer):
    """A tracer that knows which of its symbols somebody still holds when the forward method has returned."""

    def __init__(self) -> None:
        super().__init__()
        self._symbols: list[tuple[torch.fx.Node, weakref.ref[Any]]] = []

    def proxy(self, node: torch.fx.Node) -> torch.fx.Proxy:
        """Makes a symbol for what a node gives."""
        made = super().proxy(node)
        # Weak: whoever keeps the symbol alive after the trace has put the value somewhere.
        self._symbols.append((node, weakref.ref(made)))
        return made

    @property
    def kept(self) -> set[torch.fx.Node]:
        """The nodes whose results somebody still holds in attributes, lists or anything else."""
        return {node for node, symbol in self._symbols if symbol() is not None}


_Traced = tuple[nn.Module, torch.fx.Graph, set[torch.fx.Node]]


def _graphs(model: nn.Module, shadow: nn.Module | None) -> Iterator[_Traced]:
    """Traces the model, or the largest parts of it that can be traced."""
    if shadow is None:
        return
    tracer = _Tracer()
    try:
        graph = tracer.trace(shadow)
    except Exception:  # anything a user's forward may raise on symbolic values
        yield from _graphs_inside(model, shadow)
    else:
        yield model, graph, tracer.kept


def _graphs_inside(model: nn.Module, shadow: nn.Module) -> Iterator[_Traced]:
    for child, child_shadow in zip(model.children(), shadow.children(), strict=True):
        if isinstance(child, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            yield from _graphs_inside(child, child_shadow)
        else:
            yield from _graphs(child, child_shadow)
