"""Activation modules that overwrite their input, where autograd allows it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from snugfit.errors import InputError, warn
from snugfit.private_torch import hooks_everywhere, is_hooked
from snugfit.techniques.base import ModelTechnique, WrappedForward
from snugfit.techniques.blocks import chosen_blocks
from snugfit.techniques.forward_state import ForwardState
from snugfit.techniques.inplace.proof import Proof, could_overwrite, proofs

_FLAG = "_overwrites"
"""Attribute of an activation module: whether it overwrites its input now. A recomputed block has it as it was."""
_NOT_READ = frozenset({"training", "forward", _FLAG})
"""Attributes of modules that are looked at otherwise."""


class InPlace(ModelTechnique):
    """Lets activation modules overwrite their input where that is proved safe, for as long as the proof holds."""

    field = "inplace"
    wraps = True

    def change(self, model: nn.Module) -> None:
        """Wraps the modules, and the parts of the model that the proof is about; warns when there is none."""
        safe = self._within_blocks(model, proofs(model))
        parts: dict[nn.Module, _Part] = {}
        for module, proof in safe.items():
            part = parts.setdefault(proof.part, _Part(proof.part))
            part.activations.append((module, proof.watched))
            setattr(module, _FLAG, False)
            module.forward = WrappedForward(module, _Activation(module))
        for module, part in parts.items():
            module.forward = WrappedForward(module, part)
        if not safe:
            warn(
                f"inplace has no effect on {type(model).__name__}: no ReLU, LeakyReLU, ELU or Dropout module stands alone "
                "behind a linear, convolution or norm layer (or all are in place already)."
            )

    def _within_blocks(self, model: nn.Module, safe: dict[nn.Module, Proof]) -> dict[nn.Module, Proof]:
        """The modules whose input is made inside the same checkpointed block; the block's own input must stay."""
        blocks: list[set[nn.Module]] = []
        if self.setup.recipe.checkpoint == "none":
            return safe
        with contextlib.suppress(InputError):  # which `checkpoint` itself will say
            chosen = chosen_blocks(model, self.setup.recipe.checkpoint, field="checkpoint")
            blocks = [set(block.modules()) for block in chosen.values()]

        def lies(module: nn.Module) -> list[bool]:
            return [module in block for block in blocks]

        return {
            module: proof
            for module, proof in safe.items()
            if all(lies(proof.part.get_submodule(name)) == lies(module) for name in proof.sources)
        }

    @classmethod
    def may_gain(cls, model: nn.Module) -> bool:
        """Returns whether a model has any activation that could overwrite its input, without the proof that it may."""
        return any(could_overwrite(module) and getattr(module, "p", 1.0) > 0 for module in model.modules())

    @classmethod
    def undo(cls, model: nn.Module) -> None:
        """Takes the flags off the activation modules."""
        for module in model.modules():
            vars(module).pop(_FLAG, None)


class _Activation:
    """Runs an activation module's forward method, in place where its flag says so."""

    def __init__(self, module: nn.Module) -> None:
        self._module: Any = module

    def __call__(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs the forward method."""
        module = self._module
        if torch.compiler.is_compiling() or not getattr(module, _FLAG, False):  # a compiler overwrites by itself
            return forward(*args, **kwargs)
        module.inplace = True
        try:
            return forward(*args, **kwargs)
        finally:
            module.inplace = False


class _Part:
    """Runs a part of the model; what was proved of it holds while the part is as it was and no hook looks in.

    A trace knows one way through the code, that of the flags and numbers which the code could read then. And it knows
    nothing of a caller who calls the part's modules one by one.
    """

    def __init__(self, part: nn.Module) -> None:
        self._part = part
        self.activations: list[tuple[nn.Module, tuple[nn.Module, ...]]] = []
        self._state = ForwardState(part)
        self._forwards = [(module, _own_forward(module)) for module in part.modules()]
        self._traced = self._state.settings(_NOT_READ)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Part:
        """A copy of the model has no proof: its activations run as usual."""
        return _nothing_proved()

    def __reduce__(self) -> Any:
        """Neither has a pickled model in another process."""
        return _nothing_proved, ()

    def __call__(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs the forward method."""
        if torch.compiler.is_compiling() or not self._part.training or not self._is_as_traced():
            return forward(*args, **kwargs)
        for module, watched in self.activations:
            setattr(module, _FLAG, could_overwrite(module) and not any(map(is_hooked, watched)))
        try:
            return forward(*args, **kwargs)
        finally:
            for module, _ in self.activations:
                setattr(module, _FLAG, False)

    def _is_as_traced(self) -> bool:
        if hooks_everywhere() or self._state.settings(_NOT_READ) != self._traced:
            return False
        return all(_own_forward(module) is was for module, was in self._forwards)


def _own_forward(module: nn.Module) -> Any:
    """The caller's own replacement of a forward method, under what techniques have put around it, or None."""
    forward = vars(module).get("forward")
    while isinstance(forward, WrappedForward):
        forward = forward.forward
    return None if getattr(forward, "__func__", None) is type(module).forward else forward


def _nothing_proved() -> _Part:
    return _Part(nn.Module())
