"""Watches real tensors while a script trains, and writes the same trace that a simulation writes.

A dispatch mode sees every operator, weak references tell when a storage dies, and global hooks of modules and optimizers
say what a tensor is; the script is not changed and needs to know nothing. What operators take inside them comes from the
allocator's events (`profile_truth`).

Known limitations: only the main thread is watched (what loader threads make is seen when the model gets it); a script that
opens torch's own profiler cannot be watched on the CPU, as torch runs one at a time; of several GPUs the first is measured.
"""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from snugfit import private_torch
from snugfit.attributes import attributes_set, replaced
from snugfit.device_kinds import CUDA
from snugfit.private_torch import TorchDispatchMode, current_mode, current_node, on_storage_resize
from snugfit.private_torch.backward_in_place import as_unwatched
from snugfit.private_torch.fake_tensors import in_fake_mode
from snugfit.profiler.in_allocator import with_those_in_allocator
from snugfit.profiler.ledger import MADE_ELSEWHERE, ProfileLedger, plain_tensors
from snugfit.profiler.optimizer_steps import OptimizerSteps
from snugfit.profiler.temporaries import OperatorMark, with_temporaries
from snugfit.profiler.truth import CpuTruth, CudaTruth
from snugfit.recorder.seen_modules import SeenModules
from snugfit.recording.trace import Trace
from snugfit.recording.trace_builder import TraceBuilder
from snugfit.simulator.batch_shapes import shapes_of

EVENT_LIMIT = 2_000_000
"""Events after which watching ends, also without the steps that were asked for."""


class ProfileRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches from `__enter__` until enough steps were seen, or `__exit__`; `build` then gives the trace."""

    def __init__(self, steps: int, *, on_model: Callable[..., None], on_enough: Callable[[], None]) -> None:
        """Watches so many optimizer steps.

        `on_model`: called at the first optimizer step that follows a model's forward pass: model, what it was called
        with, its output, the optimizer.
        `on_enough`: called when the steps were seen, after watching has ended.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.optimizer_steps = OptimizerSteps(steps)
        """Optimizer steps so far."""
        self.device_index: int | None = None
        """Index of the CUDA device; None on the CPU."""
        self.cut_short = False
        """Whether watching ended at the limit of events."""
        self._on_model, self._on_enough = on_model, on_enough
        self._modules = SeenModules()
        self.block_names = self._modules.block_names
        self._builder = TraceBuilder()
        self._ledger = ProfileLedger(self._builder, lambda nbytes: self.truth.released_elsewhere(nbytes))
        self.truth = CpuTruth()
        """What the allocator did while it was watched."""
        self._marks: list[OperatorMark] = []
        self._marks_before = 0
        self._phase, self._phase_step = "", 0
        self._depth = self._in_optimizer = 0
        self._step_over = False
        self._called: tuple[weakref.ref[torch.nn.Module], Any, bool] | None = None
        self._shown = False
        self._on = False
        self._around = ExitStack()

    # -- beginning and end

    def __enter__(self) -> ProfileRecorder:
        """Begins to watch."""
        around = self._around
        around.enter_context(torch.autograd.set_multithreading_enabled(False))
        # Before the hooks of the module path: a model gets its names when it is called for the first time.
        hooks = [register_module_forward_pre_hook(self._module_entered)]
        around.enter_context(self._modules)
        hooks.append(register_module_forward_hook(self._module_left, with_kwargs=True, always_call=True))
        hooks.append(register_optimizer_step_pre_hook(self._before_update))
        hooks.append(register_optimizer_step_post_hook(self._after_update))
        for hook in hooks:
            around.callback(private_torch.remove_hook, hook)
        around.enter_context(replaced(self.optimizer_steps.changes()))
        around.enter_context(on_storage_resize(self._ledger.resized))
        os.register_at_fork(after_in_child=self._switch_off)
        self._turn("build")
        self.truth.start()
        self._on = True
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Ends watching, unless it has ended by itself."""
        self._end()

    def _end(self) -> None:
        if not self._on:
            return
        self._on = False
        self.truth.stop()
        self._turn("")
        self._claim_weights()
        self._around.close()
        # In the middle of someone else's mode or of backward the mode cannot be taken off; it then lets all pass.
        if current_node() is None and current_mode() is self:
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _switch_off(self) -> None:
        """Stops watching in a forked child, such as a loader's worker."""
        self._on = False

    def build(self) -> Trace:
        """Returns the trace, with the memory inside operators, after watching has ended."""
        self._ledger.decide_all()
        trace, peaks = self._builder.build(), [0] * self._marks_before + self.truth.peaks
        # What the script made before its model ran is no temporary of a step.
        before = {row for row in trace.storages if (row.category, row.phase) == ("temporaries", "build")}
        rows = (row._replace(category="other") if row in before else row for row in trace.storages)
        trace = dataclasses.replace(trace, storages=tuple(rows))
        if self.device_index is None:
            trace = with_those_in_allocator(trace, self._marks, peaks)
        return with_temporaries(trace, self._marks, peaks)

    # -- operators

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs one operator and records what it made."""
        kwargs = kwargs or {}
        # Labels that torch's own code puts around its parts, and what DTensor asks on fake tensors, which take no memory.
        if not self._on or func.namespace == "profiler" or in_fake_mode():
            return func(*args, **kwargs)
        if not all(kind.__torch_dispatch__ is private_torch.PLAIN_DISPATCH for kind in types):  # type: ignore[attr-defined]
            return NotImplemented  # a tensor made of tensors: its parts come by on their own
        module = self._where()
        phase, name, unwatched = self._phase, str(func), as_unwatched(func, args)
        for tensor in plain_tensors((*args, *kwargs.values())):
            self._ledger.see(tensor, operator=MADE_ELSEWHERE, module="", phase=phase, stream=0)
        result = unwatched(*args, **kwargs)
        for tensor in plain_tensors((result,)):
            if tensor.device.type == CUDA and self.device_index is None:
                self._move_to_cuda(tensor.device)
            self._ledger.see(tensor, operator=name, module=module, phase=phase, stream=0)
        self.truth.mark()
        self._marks.append(OperatorMark(len(self._builder), name, module, phase))
        if len(self._builder) > EVENT_LIMIT:
            self.cut_short = True
            self._end()
        return result

    def _move_to_cuda(self, device: torch.device) -> None:
        self.truth.stop()
        # From here on the card's allocator is listened to; what operators took on the CPU before does not count.
        self._marks_before = len(self._marks)
        self.device_index = device.index or 0
        self._ledger.move_to_cuda()
        self.truth = CudaTruth(torch.device(CUDA, self.device_index))
        self.truth.start()

    # -- where we are

    def _where(self) -> str:
        node = current_node()
        stack = self._modules.stack
        if self._in_optimizer:
            self._turn("optimizer")
        elif stack:
            if self._phase == "backward":
                self._turn("forward")  # a checkpointed block is computed again
        elif node is not None:
            self._turn("backward")
        elif self._phase == "backward":
            self._turn("data")
        if stack:
            return stack[-1]
        return self._modules.of_node(node) if node is not None else ""

    def _turn(self, phase: str) -> None:
        before = self._phase
        if phase == before:
            return
        if before:
            self._builder.mark(before, False, self._phase_step)
        if before == "backward":
            self._claim_gradients()
        if phase == "backward":
            self._ledger.epoch += 1
        self._ledger.forward = phase == "forward"
        self._phase, self._phase_step = phase, self.optimizer_steps.most
        if phase:
            self._builder.mark(phase, True, self._phase_step)

    # -- what tensors are

    def _module_entered(self, module: torch.nn.Module, args: Any) -> None:
        self._depth += 1
        if self._depth > 1 or not self._on or current_node() is not None:
            return
        if self._step_over and not self._end_step():
            return
        if next(module.parameters(), None) is not None:
            self._modules.watch(module)
        self._turn("forward" if torch.is_grad_enabled() else "evaluation")
        self._claim_weights()

    def _module_left(self, module: torch.nn.Module, args: Any, *more: Any) -> None:
        """A hook with keywords and output; torch omits the keywords when the module raised."""
        self._depth = max(0, self._depth - 1)
        kwargs, output = more if len(more) == 2 else ({}, None)
        if self._depth or not self._on or current_node() is not None:
            return
        given = plain_tensors((args, kwargs))
        self._ledger.claim_inputs(tensor for tensor in given if not tensor.requires_grad)
        if self._phase == "evaluation":
            self._turn("data")
        elif not self._shown and self._is_largest(module):
            with self._unwatched():
                self._called = (weakref.ref(module), shapes_of((args, kwargs)), _returns_loss(output))

    def _is_largest(self, module: torch.nn.Module) -> bool:
        """Whether no model called so far has more parameters."""
        sizes = {id(model): sum(p.numel() for p in model.parameters()) for model in self._modules.models()}
        return id(module) in sizes and sizes[id(module)] == max(sizes.values())

    def _claim_weights(self) -> None:
        for model in self._modules.models():
            for module in model.modules():
                path = self._modules.name_of(module)
                for tensor in (*module._parameters.values(), *module._buffers.values()):
                    if tensor is not None:
                        self._ledger.claim_for(tensor, "weights", path)

    def _claim_gradients(self, parameters: Iterable[torch.Tensor] | None = None) -> None:
        if parameters is None:
            parameters = (parameter for model in self._modules.models() for parameter in model.parameters())
        for parameter in parameters:
            if parameter.grad is not None:
                self._ledger.claim_for(parameter.grad, "gradients", self._modules.owner(parameter))

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        if not self._on:
            return
        self._claim_gradients(parameter for group in optimizer.param_groups for parameter in group["params"])
        self._in_optimizer += 1
        self._turn("optimizer")
        if self._called is not None and not self._shown:
            model = self._called[0]()
            if model is not None:
                self._shown = True
                with self._unwatched():
                    self._on_model(model, *self._called[1:], optimizer)
            self._called = None

    def _after_update(self, optimizer: Any, *_: Any) -> None:
        if not self._on:
            return
        self._in_optimizer -= 1
        for parameter, state in optimizer.state.items():
            owner = self._modules.owner(parameter) if isinstance(parameter, torch.Tensor) else ""
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    self._ledger.claim_for(value, "optimizer_state", owner)
        ends_step = self.optimizer_steps.count(optimizer)
        self._turn("data")
        self._step_over = self._step_over or ends_step
        # A window that a node of backward opens ends with the node: then the next call of the model ends the step.
        if self._step_over and current_node() is None:
            self._end_step()

    def _end_step(self) -> bool:
        """Whether it goes on being watched."""
        self._step_over = False
        self.truth.cut()
        if self.optimizer_steps.enough():
            self._end()
            self._on_enough()
        return self._on

    def _unwatched(self) -> AbstractContextManager[None]:
        """Context in which operators are not recorded, for the profile's own."""
        return attributes_set([self], _on=False)


def _returns_loss(output: Any) -> bool:
    """Whether a model returns its loss: a number, or something with a loss in it."""
    if isinstance(output, torch.Tensor):
        return output.dim() == 0
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return isinstance(loss, torch.Tensor)
