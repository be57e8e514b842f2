"""Says which tensors of a recording are weights, gradients and optimizer state, from models and optimizers that run."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from snugfit.private_torch import collectives
from snugfit.recorder.module_path import ModulePath
from snugfit.recorder.storage_ledger import StorageLedger


class Claims:
    """Tells a ledger which tensors belong to the watched models, and as what."""

    def __init__(self, ledger: StorageLedger, modules: ModulePath) -> None:
        self._ledger, self._modules = ledger, modules
        # No more than references: a copy of a model, or an optimizer that is made anew, goes with all that it holds.
        self._models = weakref.WeakValueDictionary[int, torch.nn.Module]()
        self._updated = weakref.WeakValueDictionary[int, Any]()
        """Optimizers that ran since their states were last claimed, by id."""
        self.in_optimizer = 0
        """How many optimizers are in the middle of their step, one inside another."""

    def watch(self, model: torch.nn.Module) -> None:
        """Watches a model: its parameters and buffers count as weights from now on."""
        self._models[id(model)] = model
        self._weights_of(model)

    def weights(self) -> None:
        """Claims parameters and buffers of all models as weights, those too that were added since."""
        for model in self._models.values():
            self._weights_of(model)

    def _weights_of(self, model: torch.nn.Module) -> None:
        """Claims the weights of a module for that module, wherever they were made."""
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            self._ledger.claim((tensor,), "weights", name.rpartition(".")[0])

    def gradients(self) -> None:
        """Claims what is in `.grad` of parameters as gradients."""
        for model in self._models.values():
            self._ledger.claim((one.grad for one in model.parameters()), "gradients")

    def states(self) -> None:
        """Claims all state of the optimizers that ran, that too which they did not make themselves."""
        for optimizer in self._updated.values():
            self._states(optimizer, list(optimizer.state))
        self._updated.clear()

    def _states(self, optimizer: Any, parameters: list[Any]) -> None:
        for parameter in parameters:
            if parameter in optimizer.state:
                tensors = (one for one in optimizer.state[parameter].values() if isinstance(one, torch.Tensor))
                # What is updated may be a share of a weight, a tensor of its own on the weight's memory.
                module = self._modules.owner(parameter) or self._ledger.module(collectives.own_part(parameter))
                self._ledger.claim(tensors, "optimizer_state", module)

    @contextmanager
    def optimizers(self) -> Iterator[None]:
        """Context in which optimizers are seen when they run: which gradients they read, which state they keep."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        def before(optimizer: Any, *_: Any) -> None:
            self._ledger.claim_left_by_backward()
            trained = (one for group in optimizer.param_groups for one in group["params"])
            self._ledger.claim((one.grad for one in trained), "gradients")
            self.in_optimizer += 1

        def after(optimizer: Any, *_: Any) -> None:
            self.in_optimizer -= 1
            self._updated[id(optimizer)] = optimizer
            # Of those that were updated now: where each parameter is updated alone, all of them each time would be many.
            self._states(optimizer, [one for group in optimizer.param_groups for one in group["params"]])

        hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
