"""What stands around the operators of a training step on the host: modules, views, autograd, the update's own Python.

A small transformer is trained by the step itself, and each phase's time is held against that of its operators, called one by
one. What is left at the smallest sizes is the host's share; what is left at larger ones is memory that other operators used.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from snugfit.device_kinds import wait_for
from snugfit.measure.processor import busy_clock
from snugfit.private_torch import DirectMode, current_node
from snugfit.recipe import Recipe
from snugfit.training import phases
from snugfit.training.prepare import prepare

OUTSIDE, BUSY, AGAIN = "outside of all phases", "busy caches", "kept again"
_PASSES = ("forward", "backward")
_BLOCKS = 4
_detach = torch.ops.aten.detach.default
_STEPS, _FIRST = 12, 4
"""Steps that are timed, and those before them, in which everything that is made once is made."""
_REPEATS = 3


def best_seconds(run: Callable[[], object]) -> float:
    """Returns the best of a few runs after one to warm up; short ones are looped until the clock can tell.

    Args:
        run: What is timed.
    """
    clock = busy_clock()
    run()
    begin = clock()
    run()
    loops = max(1, min(200, int(0.001 / max(clock() - begin, 1e-7))))
    best = float("inf")
    for _ in range(_REPEATS):
        begin = clock()
        for _ in range(loops):
            run()
        best = min(best, (clock() - begin) / loops)
    return best


def around_operators(call_seconds: float) -> dict[str, float]:
    """Returns the host's seconds by phase, and how much longer operators take in a step.

    The seconds are those around an operator in `forward` and `backward`, from a step on next to nothing; and around a
    parameter in `optimizer`, and of a step `OUTSIDE`, from one on tensors of a common size. `BUSY` is how much longer
    operators take in a step, where caches hold other things, than one by one. `AGAIN` is what each
    tensor costs that a checkpointed block keeps when it is computed again, from what a step with all blocks checkpointed
    takes longer.

    Args:
        call_seconds: What the call of an operator costs by itself.
    """
    spent, own, counts = _step(call_seconds, width=16, tokens=4)
    found = {name: max((spent[name] - own[name]) / counts[name], 0.0) for name in _PASSES}
    longer, own_longer, more = _step(call_seconds, width=16, tokens=4, checkpoint="all")
    extra = sum(longer[name] - spent[name] - (own_longer[name] - own[name]) for name in _PASSES)
    extra -= sum(found[name] * (more[name] - counts[name]) for name in _PASSES)
    found[AGAIN] = max(extra / max(more[AGAIN] - counts[AGAIN], 1), 0.0)
    spent, own, counts = _step(call_seconds, width=64, tokens=512)
    found |= {name: max((spent[name] - own[name]) / counts[name], 0.0) for name in spent if name not in _PASSES}
    around = sum(found[name] * counts[name] for name in _PASSES)
    computing = sum(own[name] for name in _PASSES)
    return {**found, BUSY: max((sum(spent[name] for name in _PASSES) - around) / computing, 1.0)}


def _step(
    call_seconds: float, *, width: int, tokens: int, checkpoint: str = "none"
) -> tuple[dict[str, float], Counter[str], Counter[str]]:
    """Returns by phase the time of a step, that of its operators one by one, and what stands for a unit there."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        trainer = prepare(
            _model(width), Recipe(checkpoint=checkpoint), loss=_loss, device="cpu", gpus=1
        )  # alone, wherever it is
        batch = torch.randn(1, tokens, width)
        timed = [_Phases() for _ in range(_FIRST + _STEPS)]
        for one in timed:
            with one:
                trainer.step(batch)
        with _Calls() as calls:
            trainer.step(batch)
        parameters = len(list(trainer.model.parameters()))
        trainer.finish()
    names = (*_PASSES, "optimizer", OUTSIDE)
    spent = {name: statistics.median(one.seconds.get(name, 0.0) for one in timed[_FIRST:]) for name in names}
    own: Counter[str] = Counter()
    counts: Counter[str] = Counter({"optimizer": parameters, OUTSIDE: 1})
    with torch.no_grad():
        for phase, call in calls.found:
            own[phase] += max(best_seconds(call) - call_seconds, 0.0)  # type: ignore[assignment]
            counts[phase] += phase in _PASSES
    counts[AGAIN] = calls.kept_again
    return spent, own, counts


def keeps_again(operator: Any) -> bool:
    """Returns whether an operator, run in backward, keeps a tensor of a checkpointed block that is computed again.

    The hook of torch's checkpoint detaches each of them; autograd itself detaches gradients, at the nodes of parameters.

    Args:
        operator: The overload.
    """
    return operator is _detach and not hasattr(current_node(), "variable")


def issue_seconds(device: torch.device) -> float:
    """Returns the host's time for an operator in forward or backward of a model, also where a card computes meanwhile.

    Args:
        device: Where the model is.
    """
    with torch.random.fork_rng(devices=[]):
        model = _model(16).to(device)
    inputs = torch.ones(1, 4, 16, device=device)
    best = float("inf")
    with torch.enable_grad():
        with _Calls() as calls:
            model(inputs).sum().backward()
        for _ in range(10 * _REPEATS):
            wait_for(device)
            begin = time.perf_counter()
            model(inputs).sum().backward()
            best = min(best, time.perf_counter() - begin)
    return best / len(calls.found)


def _model(width: int) -> nn.Module:
    return nn.Sequential(*[_Block(width) for _ in range(_BLOCKS)])


def _loss(output: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return (output - batch).square().mean()


class _Block(nn.Module):
    """A block of a transformer, as people write it: modules, views and attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Goes through it."""
        samples, tokens, width = inputs.shape
        heads = self.qkv(self.before(inputs)).reshape(samples, tokens, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads.unbind(0)).transpose(1, 2).reshape(samples, tokens, width)
        inputs = inputs + self.out(mixed)
        return torch.add(inputs, self.narrow(F.gelu(self.wide(self.between(inputs)))))


class _Phases:
    """Times each phase of a step, the ones inside of it left out."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = busy_clock()
        self._stack = [OUTSIDE]
        self._since = 0.0

    def __enter__(self) -> None:
        self._listening = phases.listen(self._on_phase)
        self._listening.__enter__()
        self._since = self._clock()

    def __exit__(self, *error: Any) -> None:
        self._book()
        self._listening.__exit__(None, None, None)

    def _on_phase(self, name: str, entered: bool) -> None:
        self._book()
        if entered:
            self._stack.append(name)
        else:
            self._stack.pop()

    def _book(self) -> None:
        now = self._clock()
        self.seconds[self._stack[-1]] = self.seconds.get(self._stack[-1], 0.0) + now - self._since
        self._since = now


class _Calls(DirectMode):  # type: ignore[no-untyped-call]
    """Collects the operators that compute, with their phases."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[str, Callable[[], object]]] = []
        self.kept_again = 0
        self._stack = [OUTSIDE]
        self._listening = phases.listen(self._on_phase)

    def __enter__(self) -> Any:
        self._listening.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._listening.__exit__(None, None, None)

    def _on_phase(self, name: str, entered: bool) -> None:
        if entered:
            self._stack.append(name)
        else:
            self._stack.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Notes an operator and runs it."""
        self.kept_again += self._stack[-1] == "backward" and keeps_again(func)
        if not func.is_view:
            self.found.append((self._stack[-1], functools.partial(func, *args, **(kwargs or {}))))
        return func(*args, **(kwargs or {}))
