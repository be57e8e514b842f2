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
from snugfit.errors import TrainingError
from snugfit.private_torch import NormBase
from snugfit.techniques.shard.ranks import Ranks

DEPTH = 2
"""Steps whose values may be on their way to the host."""
SMALLEST_LOSS_SCALE = 2.0**-4
"""A loss scale under this means that gradients overflow whatever the scale."""


class LateValues:
    """Small device values on their way to the host, read in order when they have arrived."""

    def __init__(self, device: torch.device) -> None:
        """Makes an empty queue.

        Args:
            device: Where the values come from.
        """
        self._module = module_of(device)
        self._page_locked = kind_of(device).page_locked
        self._queue: deque[tuple[int, Tensor, Any]] = deque()

    def put(self, step: int, values: Tensor) -> None:
        """Starts the way of some values to the host.

        Args:
            step: The step they belong to.
            values: A small 1-dim float32 tensor on the device.
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
        """Returns the values that are there.

        Args:
            wait: Whether to wait for all that are on their way.

        Returns:
            `(step, values)` pairs in order.
        """
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
        """Starts with a good run.

        Args:
            device: Where training runs.
            precision: The recipe's precision, for the advice.
            in_backward: Whether parameters are updated in the middle of backward, before all gradients are known.
        """
        self.waits = device.type == "cpu"
        self.bad_step: int | None = None
        """The step that the last error was about."""
        self._precision = precision
        self._in_backward = in_backward
        self._late = LateValues(device)
        self._bad: Tensor | None = None

    def mask(self, *values: Tensor) -> Tensor:
        """Judges values on the device; once bad, everything is masked until the error was raised.

        Args:
            values: 0-dim tensors that are finite in a good step.

        Returns:
            A 0-dim float32 flag: 1 where one of them, or one before, is not finite.
        """
        for value in values:
            bad = (~torch.isfinite(value.detach())).float()
            self._bad = bad if self._bad is None else torch.maximum(self._bad, bad)
        assert self._bad is not None
        return self._bad

    @staticmethod
    def good(*values: Tensor) -> bool:
        """Returns whether values are finite, and waits for them.

        Args:
            values: 0-dim tensors.
        """
        return all(math.isfinite(value) for value in values)

    def report(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """Takes note of a step whose update is masked on the device if it is bad.

        Args:
            step: The step's number, from 1.
            loss: Its loss, 0-dim.
            norm: A norm of its gradients, or the loss scale after it under `16-mixed`; 0-dim.
        """
        self._late.put(step, torch.stack((loss.detach().float(), norm.float())))

    def check(self, *, wait: bool = False) -> None:
        """Raises for a bad step among those whose values have arrived.

        Args:
            wait: Whether to wait for all that are on their way.

        Raises:
            TrainingError: The loss or a gradient was not finite, or the loss scale fell away.
        """
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
        """Raises the error that ends the run.

        Args:
            step: The bad step's number, from 1.
            cause: What was found.
            partly: Whether some parameters were updated before the cause was found.

        Raises:
            TrainingError: Always.
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
        raise TrainingError(f"step {step}: {cause}. {kept} {advice}")


class Statistics:
    """Running statistics of norm layers as they were before each of the last steps, so that a bad batch leaves no trace."""

    def __init__(self, model: nn.Module, depth: int) -> None:
        """Finds the layers.

        Args:
            model: The model, on its device.
            depth: Steps to remember.
        """
        modules = (module for module in model.modules() if isinstance(module, NormBase))
        self._norms = [module for module in modules if module.track_running_stats]
        self._depth = depth
        self._before: deque[tuple[int, list[Tensor], list[Tensor]]] = deque()
        self._unused: list[list[Tensor]] = []

    def remember(self, step: int) -> None:
        """Copies the statistics before a step.

        Args:
            step: The step's number, from 1.
        """
        if not self._norms:
            return
        now = [buffer for norm in self._norms for buffer in norm.buffers(recurse=False)]
        if (
            not self._before and not self._unused
        ):  # all at once: the first step takes what later ones do, and is predicted
            self._unused = [[torch.empty_like(one) for one in now] for _ in range(self._depth)]
        copies = self._unused.pop() if self._unused else self._before.popleft()[2]
        with torch.no_grad():
            torch._foreach_copy_(copies, now)
        self._before.append((step, now, copies))

    def even_out(self, ranks: Ranks) -> None:
        """Gives every process the mean of what all have seen.

        Args:
            ranks: The processes that share a batch.
        """
        floats = [one for norm in self._norms for one in norm.buffers(recurse=False) if one.is_floating_point()]
        if floats:
            ranks.mean(floats)

    def restore(self, step: int) -> None:
        """Puts back what was there before a step, if it is one of the last.

        Args:
            step: The step's number.
        """
        for known, buffers, copies in self._before:
            if known == step:
                with torch.no_grad():
                    torch._foreach_copy_(buffers, copies)


def global_norm(gradients: list[Tensor]) -> Tensor:
    """Returns the 2-norm of all tensors together, in fp32 for those of 16 bits (fp16 would overflow at 65504).

    It is not finite where an element is not, or where elements are beyond 1e19 and their squares overflow fp32. The norm of
    largest elements would have no such limit, but torch has no fast kernel for it on CPU.

    Args:
        gradients: Tensors on one device, at least one.

    Returns:
        A 0-dim tensor.
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
    """Returns the name of the first tensor with an element that is not finite.

    Args:
        named: Name -> tensor.

    Returns:
        The name, or `?` when all are finite.
    """
    return next((name for name, tensor in named.items() if not bool(torch.isfinite(_strided(tensor)).all())), "?")


def _strided(gradient: Tensor) -> Tensor:
    """A gradient, or the rows that a sparse one has: as finite as it is, which is all that is asked of it."""
    return gradient._values() if gradient.is_sparse else gradient
