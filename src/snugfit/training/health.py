"""Is the run still good? Values that are not finite are found without making the device wait.

On a device that works ahead of the host, each step's loss and gradient norm are copied to the host beside the compute and
read when they have arrived, at most `DEPTH` steps later. The update of a bad step, and of those that follow before the host
knows, is masked on the device meanwhile, so the weights stay those of the last good step.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from snugfit.device_kinds import kind_of, module_of
from snugfit.errors import NotFiniteError
from snugfit.private_torch import NormBase
from snugfit.techniques.shard.ranks import Ranks

DEPTH = 2
"""Steps whose values may be on their way to the host."""
SMALLEST_LOSS_SCALE = 2.0**-4
"""A loss scale under this means that gradients overflow whatever the scale."""


class LateValues:
    """Small device values on their way to the host, read in order when they have arrived."""

    def __init__(self, device: torch.device) -> None:
        self._module = module_of(device)
        self._page_locked = kind_of(device).page_locked
        self._queue: deque[tuple[int, Tensor, Any]] = deque()

    def put(self, step: int, values: Tensor) -> None:
        """Starts copying the values of a step to the host.

        `values`: a small 1-dim float32 tensor on the device.
        """
        if self._module is None:
            self._queue.append((step, values, None))
            return
        host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=self._page_locked)
        host.copy_(values, non_blocking=True)
        event = self._module.Event()
        event.record(self._module.current_stream())
        self._queue.append((step, host, event))

    def clear(self) -> None:
        """Forgets the values that are on their way."""
        self._queue.clear()

    def arrived(self, *, wait: bool = False) -> list[tuple[int, list[float]]]:
        """Returns the `(step, values)` that are there, in order; with `wait`, all that are on their way."""
        ready = []
        while self._queue:
            step, host, event = self._queue[0]
            if event is not None and not event.query():
                if not wait and len(self._queue) <= DEPTH:
                    break
                event.synchronize()
            self._queue.popleft()
            ready.append((step, host.tolist()))
        return ready


class Health:
    """Judges the loss and the gradients of each step; raises when the run went bad."""

    def __init__(self, device: torch.device, precision: str, *, in_backward: bool = False) -> None:
        """Starts a good run; `precision` is named in the advice of an error.

        `in_backward`: whether parameters are updated in the middle of backward, before all gradients are known.
        """
        self.waits = device.type == "cpu"
        self.bad_step: int | None = None
        """The step that the last error was about."""
        self._precision = precision
        self._in_backward = in_backward
        self._late = LateValues(device)
        self._bad: Tensor | None = None

    def mask(self, *values: Tensor) -> Tensor:
        """Returns a 0-dim float32 flag: 1 if a value is not finite now or was before, until the error is raised."""
        for value in values:
            # The flag only rises: what comes behind a bad step is masked too, until the host knows.
            bad = (~torch.isfinite(value.detach())).float()
            self._bad = bad if self._bad is None else torch.maximum(self._bad, bad)
        assert self._bad is not None
        return self._bad

    @staticmethod
    def good(*values: Tensor) -> bool:
        """Returns whether 0-dim values are finite; the host waits for them."""
        return all(math.isfinite(value) for value in values)

    def report(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """Records a step whose update the device masks if it is bad.

        `norm`: a norm of its gradients, or the loss scale after it under `16-mixed`; 0-dim.
        `loss`: its loss, 0-dim.
        """
        self._late.put(step, torch.stack((loss.detach().float(), norm.float())))

    def check(self, *, wait: bool = False) -> None:
        """Raises `NotFiniteError` for a bad step among those whose values have arrived; `wait`: waits for all."""
        for step, (loss, norm) in self._late.arrived(wait=wait):
            if self._precision == "16-mixed":
                if norm < SMALLEST_LOSS_SCALE:
                    self.stop(
                        step, f"gradients overflow fp16 at every loss scale (now {norm:g}); the last loss was {loss:g}"
                    )
            elif not math.isfinite(loss):
                self.stop(step, f"the loss is {loss:g}")
            elif not math.isfinite(norm):
                self.stop(step, f"the loss is finite ({loss:.4g}), but a gradient is not", partly=self._in_backward)

    def stop(self, step: int, cause: str, *, partly: bool = False) -> NoReturn:
        """Raises the `NotFiniteError` that ends the run.

        `partly`: whether some parameters were updated before the cause was found.
        """
        advice = {
            "16-true": "fp16 overflows above 65504: use bf16-true or 16-mixed, or a lower learning rate.",
            "16-mixed": "Use bf16-mixed, or a lower learning rate.",
        }.get(self._precision, "Try a lower learning rate, a warm-up or clip_norm, and look at this batch.")
        kept = f"Its update was not taken; the weights are those of step {step - 1}."
        if partly:
            kept = (
                "With step_in_backward the parameters whose gradients came before it in this backward pass were updated, "
                "the others were not; go back to a checkpoint."
            )
        self.bad_step = step
        self._bad = None
        self._late.clear()
        raise NotFiniteError(f"step {step}: {cause}. {kept} {advice}")


class Statistics:
    """Running statistics of norm layers as they were before each of the last steps, so that a bad batch leaves no trace."""

    def __init__(self, model: nn.Module, depth: int) -> None:
        """Finds the norm layers; `depth` is the number of steps that can be taken back."""
        modules = (module for module in model.modules() if isinstance(module, NormBase))
        self._norms = [module for module in modules if module.track_running_stats]
        self._depth = depth
        self._before: deque[tuple[int, list[Tensor], list[Tensor]]] = deque()
        self._unused: list[list[Tensor]] = []

    def remember(self, step: int) -> None:
        """Copies the statistics before a step, numbered from 1."""
        if not self._norms:
            return
        now = [buffer for norm in self._norms for buffer in norm.buffers(recurse=False)]
        if (
            not self._before and not self._unused
        ):  # all at once: the first step takes what later ones do, and is predicted
            self._unused = [[torch.empty_like(one) for one in now] for _ in range(self._depth)]
        # Then the oldest copies are written over: no later step takes more memory.
        copies = self._unused.pop() if self._unused else self._before.popleft()[2]
        with torch.no_grad():
            torch._foreach_copy_(copies, now)
        self._before.append((step, now, copies))

    def even_out(self, ranks: Ranks) -> None:
        """Gives every process the mean of the statistics of all."""
        floats = [one for norm in self._norms for one in norm.buffers(recurse=False) if one.is_floating_point()]
        if floats:
            ranks.mean(floats)

    def restore(self, step: int) -> None:
        """Puts back the statistics from before a step, if it is one of the last."""
        for known, buffers, copies in self._before:
            if known == step:
                with torch.no_grad():
                    torch._foreach_copy_(buffers, copies)


def global_norm(gradients: list[Tensor]) -> Tensor:
    """Returns the 2-norm of all tensors together, in fp32 for those of 16 bits (fp16 would overflow at 65504).

    It is not finite where an element is not, or where elements are beyond 1e19 and their squares overflow fp32. The
    norm of largest elements would have no such limit, but torch has no fast kernel for it on CPU.
    """
    gradients = [_strided(gradient) for gradient in gradients if gradient.numel()] or gradients
    if len(gradients) == 1:  # once a parameter, where it is updated in backward: as few calls as possible
        dtype = torch.float32 if gradients[0].dtype in (torch.float16, torch.bfloat16) else None
        alone: Tensor = torch.linalg.vector_norm(gradients[0], dtype=dtype)
        return alone
    halves = [gradient for gradient in gradients if gradient.dtype in (torch.float16, torch.bfloat16)]
    if not halves:
        return torch.nn.utils.get_total_norm(gradients)
    others = [gradient for gradient in gradients if gradient.dtype not in (torch.float16, torch.bfloat16)]
    norms = [*torch._foreach_norm(halves, 2, dtype=torch.float32), *(torch._foreach_norm(others) if others else ())]
    norm: Tensor = torch.linalg.vector_norm(torch.stack([norm.float() for norm in norms]))
    return norm


def first_bad(named: dict[str, Tensor]) -> str:
    """Returns the name of the first tensor with an element that is not finite, `?` when all are finite."""
    return next((name for name, tensor in named.items() if not bool(torch.isfinite(_strided(tensor)).all())), "?")


def _strided(gradient: Tensor) -> Tensor:
    """A gradient, or the rows of a sparse one: enough to tell whether all of it is finite."""
    return gradient._values() if gradient.is_sparse else gradient
