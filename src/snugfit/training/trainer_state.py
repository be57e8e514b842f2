"""What of a trainer is saved: all that its next step depends on, and what was learned, whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Generator, amp, nn

from snugfit.techniques.shard.ranks import Ranks
from snugfit.training.other_model import check_shapes, shapes
from snugfit.training.switch import Rebuild
from snugfit.training.update import Update


class TrainerState:
    """The part of a trainer that saves and loads."""

    model: nn.Module
    steps_done: int
    update: Update
    _rebuild: Rebuild
    _scheduler: Any | None
    _scaler: amp.GradScaler | None
    _generator: Generator | None

    @property
    def ranks(self) -> Ranks | None:
        """The processes that share every batch with this one; None: none do."""
        raise NotImplementedError

    def finish(self) -> None:
        """Waits for the steps under way and judges them."""
        raise NotImplementedError

    def _follow(self) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Returns everything that the next step depends on, except the random state of torch.

        Returns:
            `model` (plain keys), `optimizer` (as torch's ordinary optimizer has it), `scheduler` (that of `scheduler=`),
            `scaler`, `rounding`, `steps_done`.
        """
        self._follow()
        self._rebuild.handle.pass_on()
        return {
            "model": self.model.state_dict(),
            "optimizer": self.update.optimizer.state_dict(),
            "scheduler": self._scheduler.state_dict() if self._scheduler is not None else None,
            "scaler": self._scaler.state_dict() if self._scaler else None,
            "rounding": self._generator.get_state() if self._generator else None,
            "steps_done": self.steps_done,
        }

    def full_state_dict(self) -> dict[str, Any]:
        """Returns the model's `state_dict`, whole, on the host; of several processes, every one must call it.

        Weights that are shared out or cut are collected one tensor after the other, so that no device ever holds the model.

        Returns:
            In the first process, the plain model's keys (adapters beside them, packed weights as they are) -> tensors in
            memory of their own; in the others nothing.

        Raises:
            TrainingError: One of the last steps was bad; the weights are those of the last good step.
        """
        from snugfit.training import whole_weights

        return whole_weights.full_state_dict(self)

    def save(self, path: str | Path) -> None:
        """Writes what was learned, complete or not at all; of several processes, every one must call it, the first writes.

        Training goes on as if nothing had happened.

        Args:
            path: A name that ends in `.safetensors`: a file with the plain model's keys, adapters merged. Another name: a
                folder with that file as `model.safetensors` (none where weights are packed), for a model of transformers its
                config, so that `from_pretrained` loads the folder, and where adapters are trained `adapter/`, which peft
                loads. Files of these names are replaced.

        Raises:
            InputError: It cannot be written there, or a file for whole weights was asked for and they are packed.
            TrainingError: One of the last steps was bad; the weights are those of the last good step.
        """
        from snugfit.training import whole_weights

        whole_weights.save(self, path)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved state.

        Args:
            state: From `state_dict`, of this or another recipe for the same workload; of several processes, what this one
                holds of it.
        """
        if self.ranks is None:
            try:
                self.model.load_state_dict(state["model"])
            except RuntimeError:
                check_shapes(shapes(self.model.state_dict()), shapes(state["model"]))
                raise
        else:
            from snugfit.training.shares import load_shares

            load_shares(self.model, state["model"])
        self._follow()
        self.update.load_state_dict(state["optimizer"])
        self._rebuild.handle.follow()
        if self._scheduler is not None and state.get("scheduler") is not None:
            self._scheduler.load_state_dict(state["scheduler"])
        if self._scaler and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        if self._generator and state["rounding"] is not None:
            self._generator.set_state(state["rounding"].cpu())
        self.steps_done = int(state["steps_done"])
