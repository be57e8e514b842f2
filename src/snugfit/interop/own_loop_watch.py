"""`snugfit.watch_memory`: a loop of one's own (plain torch, Accelerate, Fabric), its memory predicted and measured."""

from __future__ import annotations

import sys
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from snugfit.errors import InputError
from snugfit.interop.watched_training import WatchedTraining
from snugfit.recorder.registration import is_simulation
from snugfit.values.assumptions import AssumeArgument

if TYPE_CHECKING:
    import torch

    from snugfit.simulator.prediction import Estimate


class watch_memory(WatchedTraining):
    """Context around a training loop: its memory is predicted, measured, and shown one beside the other at its end.

    A step ends when an optimizer of `torch.optim` has stepped, whoever calls it, so the loop is not changed. The prediction
    runs the script that is running, as `snugfit estimate SCRIPT` does, until it has taken three steps, and takes some
    seconds; in a notebook there is none. Memory that grows step by step is an alarm (a `SnugfitWarning`) that names what
    grows. On a card torch's peak counters are reset at every step.

    Args:
        model: What is trained, as it is or wrapped by `accelerator.prepare` or `fabric.setup`.
        optimizer: Its optimizer, if it has state already; None: it begins to train.
        budget: Memory that the training may take, such as "8GiB", or bytes; None: a card's own memory.
        on_exceed: What happens where more is predicted: "warn", or "stop" before anything was trained.
        predict: Whether it is predicted.
        leak_alarm: Whether memory that grows is told.
        assume: What to take for values that simulated tensors do not have, as for `snugfit.estimate`.

    Raises:
        InputError: Model, budget, on_exceed or assume cannot be used.
        DoesNotFitError: More than the budget is predicted, and on_exceed is "stop".
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Any = None,
        *,
        budget: str | int | None = None,
        on_exceed: str = "warn",
        predict: bool = True,
        leak_alarm: bool = True,
        assume: AssumeArgument = None,
    ) -> None:
        super().__init__(budget, on_exceed=on_exceed, predict=predict, leak_alarm=leak_alarm, assume=assume)
        if not callable(getattr(model, "parameters", None)):
            raise InputError(f"model is a {type(model).__name__}; give the torch.nn.Module that is trained.")
        self._model, self._optimizer = model, optimizer
        self._hooks: list[Any] = []
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._steps = 0
        self._ends_later: Any = None

    def __enter__(self) -> watch_memory:
        """Predicts, and begins to measure."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        from snugfit.techniques.batches import tensors_of

        if is_simulation():  # the script itself is what is predicted
            return self
        place = next((one.device for one in self._model.parameters()), torch.device("cpu"))
        self._predict(self._ask, place)
        state = getattr(self._optimizer, "state", None)
        self._watch.begin(place, [self._model], tensors_of(list(state.values())) if state else ())
        self._hooks = [register_optimizer_step_post_hook(self._stepped)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shows predicted beside measured."""
        for hook in self._hooks:
            hook.remove()
        if self._ends_later is not None:
            self._step_ended()
        self._finish()

    def _ask(self, device: str) -> Estimate:
        from snugfit.simulator.own_script import estimate_script

        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        script = getattr(main, "__file__", None) if spec is None else f"-m {spec.name.removesuffix('.__main__')}"
        if script is None:
            raise InputError(
                "this is no script (a notebook, a shell), and what is predicted is the script that runs. Predict the step "
                "by snugfit.estimate(model, batch, step=...), and give predict=False here."
            )
        return estimate_script(script, sys.argv[1:], device=device, assume=self._assume)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        """Counts steps by the optimizer that steps most: one of several may have its turn."""
        self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        if self._counts[optimizer] > self._steps:
            self._steps = self._counts[optimizer]
            self._step_ended()

    def _step_ended(self, *_: Any) -> None:
        """Ends the step; one whose optimizer steps in backward ends where the next one begins.

        What the CPU's allocator does is read by a profiler, and one that is started inside a node of backward ends with it.
        """
        from torch.nn.modules.module import register_module_forward_pre_hook

        from snugfit.private_torch import current_node

        if current_node() is not None:
            self._ends_later = self._ends_later or register_module_forward_pre_hook(self._step_ended)
            return
        if self._ends_later is not None:
            self._ends_later.remove()
            self._ends_later = None
        self._watch.step_ended()
