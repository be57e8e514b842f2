"""Where a recorded run is: which module runs, and in which phase of the step."""

from __future__ import annotations

from snugfit import private_torch
from snugfit.recorder.claims import Claims
from snugfit.recorder.module_path import ModulePath
from snugfit.recorder.storage_ledger import StorageLedger
from snugfit.recording.trace_builder import TraceBuilder

FORWARD, _BACKWARD, _OPTIMIZER = "forward", "backward", "optimizer"


class Moment:
    """The module and the phase that run now; tells the ledger where the phase changes."""

    def __init__(self, modules: ModulePath, claims: Claims, ledger: StorageLedger, builder: TraceBuilder) -> None:
        self._modules, self._claims, self._ledger, self._builder = modules, claims, ledger, builder
        self.state = FORWARD
        """Forward, backward or optimizer, as autograd and the optimizers show it."""
        self._marks: list[str] = []

    @property
    def phase(self) -> str:
        """The phase of the run: as marked, else as autograd and the optimizer show it."""
        return self._marks[-1] if self._marks else self.state

    def mark(self, name: str, entered: bool, step: int) -> None:
        """Takes a mark of `snugfit.phases`."""
        if entered:
            self._marks.append(name)
        elif self._marks:
            if name == _BACKWARD:
                self._claims.gradients()
            elif name == _OPTIMIZER:
                self._claims.states()
                self._ledger.claim_left_by_optimizer()
            self._marks.pop()
        self._builder.mark(name, entered, step)

    def module(self) -> str:
        """Returns the running module, and notices whether this is forward, backward or the optimizer."""
        node = private_torch.current_node()
        stack = self._modules.stack
        if self._claims.in_optimizer:
            state = _OPTIMIZER
        # A module that runs inside of backward is being computed again: that is forward.
        elif stack or node is None:
            state = FORWARD
        else:
            state = _BACKWARD
        if state is not self.state:
            self._change(state, node is not None)
        if stack:
            return stack[-1]
        return self._modules.of_node(node) if node is not None else ""

    def _change(self, state: str, in_backward: bool) -> None:
        if state is _BACKWARD:
            self._ledger.epoch += 1
        elif self.state is _BACKWARD and not in_backward:
            self._claims.gradients()
        self._ledger.forward = state is FORWARD
        self.state = state
