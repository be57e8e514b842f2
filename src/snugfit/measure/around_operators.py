"""What stands around the operators of a training step on the host: modules, views, autograd, the update's own Python.

Small transformers are trained by the step itself, on next to nothing, and each differs from the first in one thing:
operators that autograd notes, views, operators inside a `torch.autograd.Function`, more blocks, blocks that are computed
again. What the one thing costs is how much longer the step takes, less what its operators take when Python calls the same
ones in the same order. Autograd's own calls come from C++ and cost less than Python's, so what stands around an operator can
be below nothing. At larger sizes, what is left beside all that is memory that other operators used.
"""

from __future__ import annotations

import functools
import itertools
import operator
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from snugfit.device_kinds import wait_for
from snugfit.measure import small_models
from snugfit.measure.between_operators import caller, keeps_again
from snugfit.measure.full_speed import FullSpeed
from snugfit.measure.module_path import ModulePath
from snugfit.measure.operator_seconds import seconds_in_a_step
from snugfit.measure.processor import busy_clock
from snugfit.private_torch import DirectMode
from snugfit.recipe import Recipe
from snugfit.recording.trace import CODE, ENGINE, GRAPH
from snugfit.training import phases
from snugfit.training.prepare import prepare

_OUTSIDE, _OPTIMIZER = "outside of all phases", "optimizer"
_PASSES = ("forward", "backward")
_PHASES = (*_PASSES, _OPTIMIZER, _OUTSIDE)
_AGAIN, _MODULES, _PARAMETERS = "kept again", "modules", "parameters"
_FEW, _MORE = 1, 10
"""Blocks of a model, and of two that differ in nothing else."""
_SAMPLES = 4
_STEPS, _FIRST = 8, 3
"""Steps that are timed, and those before them, in which everything that is made once is made."""
_LARGE_STEPS, _LARGE_TRIES = 5, 10
"""Steps with larger tensors that count, at full speed from beginning to end, and those that are taken for them at most."""
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


def around_operators(full_speed: FullSpeed) -> dict[str, float]:
    """Returns what stands around operators, views, modules and the rest of a step, as fields of `HostSpeeds`.

    Args:
        full_speed: Waits for the machine's full speed before each step.
    """
    plain, noted, viewing, coded, cut, deep, again = _timed(
        [
            _prepared(blocks=_FEW),
            _prepared(blocks=_FEW, then=small_models.noted),
            _prepared(blocks=_FEW, then=small_models.viewing),
            _prepared(blocks=_FEW, then=small_models.Coded.apply),
            _prepared(blocks=_FEW, samples=_SAMPLES),
            _prepared(blocks=_MORE),
            _prepared(blocks=_MORE, checkpoint="all"),
        ],
        full_speed,
    )
    found: dict[str, float] = {}

    def explained(step: _Step, phases_: Iterable[str]) -> float:
        """Seconds of a step around its operators, as far as they are known yet."""
        return sum(seconds * step.counts[what] for name in phases_ for what, seconds in costs[name].items())

    def left(step: _Step, less: _Step | None, phases_: Iterable[str] = _PASSES) -> float:
        """Seconds of a step that are not explained yet, less those of another."""
        mine = sum(step.spent[name] - step.own[name] for name in phases_) - explained(step, phases_)
        return mine if less is None else mine - left(less, None, phases_)

    costs: dict[str, dict[Any, float]] = {"forward": {}, "backward": {}}
    for field, step, phase, what in (
        ("operator_seconds", noted, "forward", GRAPH),
        ("backward_operator_seconds", noted, "backward", ENGINE),
        ("view_seconds", viewing, "forward", (GRAPH, "view")),
        ("backward_view_seconds", viewing, "backward", (ENGINE, "view")),
    ):
        seconds = left(step, plain, (phase,)) / (step.counts[what] - plain.counts[what])
        found[field] = costs[phase][what] = seconds
    found["code_operator_seconds"] = left(coded, plain) / (coded.counts[CODE] - plain.counts[CODE])
    for field, phase, what in (
        ("module_seconds", "forward", _MODULES),
        ("gradient_seconds", "backward", _PARAMETERS),
    ):
        seconds = left(deep, plain, (phase,)) / (deep.counts[what] - plain.counts[what])
        found[field] = costs[phase][what] = max(seconds, 0.0)
    found["kept_again_seconds"] = max(left(again, deep) / (again.counts[_AGAIN] - deep.counts[_AGAIN]), 0.0)
    found["pass_seconds"] = max(left(cut, plain) / (_SAMPLES - 1), 0.0)
    # Differences are surest between the best of many; how long a step takes is how long it takes on most occasions.
    large, predicted = _large(full_speed)
    own, spent = (_medians(one) for one in (predicted, large.rounds))
    updating = spent[_OPTIMIZER] - own[_OPTIMIZER] - found["code_operator_seconds"] * large.counts[CODE]
    found["parameter_seconds"] = max(updating / large.counts[_PARAMETERS], 0.0)
    found["step_seconds"] = spent[_OUTSIDE] + max(left(plain, None) - found["pass_seconds"], 0.0)
    around = found["pass_seconds"] + explained(large, _PASSES)
    factors = [
        (sum(step[name] for name in _PASSES) - around) / sum(operators[name] for name in _PASSES)
        for step, operators in zip(large.rounds, predicted, strict=True)
    ]
    found["busy_factor"] = max(statistics.median(factors), 1.0)
    return found


class _Step:
    """A model that is trained on a batch: its time by phase, that of its operators alone, and what is counted in a step."""

    def __init__(self, trainer: Any, batch: torch.Tensor) -> None:
        self.trainer, self.batch = trainer, batch
        self.found: list[tuple[str, Callable[[], object]]] = []
        self.counts: Counter[Any] = Counter()
        self.rounds: list[Counter[str]] = []
        """Seconds of each step by phase."""
        self.spent: Mapping[str, float] = {}
        self.own: Mapping[str, float] = {}
        self._own_rounds: list[Counter[str]] = []

    def begin(self) -> None:
        """Takes the steps in which everything that is made once is made, and looks at what happens in one."""
        for _ in range(_FIRST):
            self.trainer.step(self.batch)
        with _Calls() as calls:
            self.trainer.step(self.batch)
        self.found, self.counts = calls.found, calls.counts
        self.counts[_PARAMETERS] = len(list(self.trainer.model.parameters())) * len(self.batch)

    def time(self) -> None:
        """Takes a step, and notes its time by phase."""
        with _Phases() as phases_:
            self.trainer.step(self.batch)
        self.rounds.append(phases_.seconds)

    def call(self) -> None:
        """Calls the operators of a step alone, in their order, and notes their time by phase."""
        clock, own = busy_clock(), Counter[str]()
        with torch.no_grad():
            for phase, calls in itertools.groupby(self.found, key=operator.itemgetter(0)):
                begin = clock()
                for _, call in calls:
                    call()
                own[phase] += clock() - begin  # type: ignore[assignment]
        self._own_rounds.append(own)

    def end(self) -> None:
        """Keeps the best time of each phase."""
        self.trainer.finish()
        self.spent, self.own = (
            {name: min(seconds[name] for seconds in rounds) for name in _PHASES}
            for rounds in (self.rounds, self._own_rounds)
        )


def _prepared(*, width: int = 16, tokens: int = 4, samples: int = 1, checkpoint: str = "none", **model: Any) -> _Step:
    """A step in which each sample is a microbatch; of one process, however many this one is among."""
    recipe = Recipe(checkpoint=checkpoint, microbatch_size=1 if samples > 1 else None)
    trainer = prepare(
        small_models.model(width, **model), recipe, loss=small_models.loss, device="cpu", gpus=1
    )  # alone, wherever it is
    return _Step(trainer, torch.randn(samples, tokens, width))


def _timed(steps: list[_Step], full_speed: FullSpeed) -> list[_Step]:
    """Times steps and their operators in turn, so that none has a quieter machine than the others."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        for step in steps:
            step.begin()
        for _ in range(_STEPS):
            for step in steps:
                full_speed.wait()
                step.time()
                full_speed.wait()
                step.call()
        for step in steps:
            step.end()
    return steps


def _large(full_speed: FullSpeed) -> tuple[_Step, list[Counter[str]]]:
    """Takes steps with tensors that do not all fit into a core's own cache; each time its operators are timed anew."""
    step, predicted = _prepared(blocks=_MORE, width=64, tokens=512), list[Counter[str]]()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        step.begin()
        for left in reversed(range(_LARGE_TRIES)):
            full_speed.wait()
            step.time()
            if full_speed.is_here() or left < _LARGE_STEPS - len(predicted):
                predicted.append(_as_predicted(step.found, full_speed))
            else:
                step.rounds.pop()
            if len(predicted) == _LARGE_STEPS:
                break
        step.trainer.finish()
    return step, predicted


def _as_predicted(found: list[tuple[str, Callable[[], object]]], full_speed: FullSpeed) -> Counter[str]:
    """Seconds of operators by phase, as predictions count them."""
    known, spent = dict[Any, float](), Counter[str]()
    with torch.no_grad():
        for phase, call in found:
            key = _layouts(call)
            if key not in known:
                known[key] = seconds_in_a_step(call, full_speed)
            spent[phase] += known[key]  # type: ignore[assignment]
    return spent


def _medians(rounds: list[Counter[str]]) -> dict[str, float]:
    return {name: statistics.median(seconds[name] for seconds in rounds) for name in _PHASES}


def _layouts(value: Any) -> Any:
    """A call or an argument, as it decides on the time."""
    if isinstance(value, functools.partial):
        return value.func, _layouts(value.args), _layouts(tuple(value.keywords.items()))
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return tuple(map(_layouts, value))
    return str(value)


def issue_seconds(device: torch.device) -> float:
    """Returns the host's time for an operator in forward or backward of a model, also where a card computes meanwhile.

    Args:
        device: Where the model is.
    """
    with torch.random.fork_rng(devices=[]):
        model = small_models.model(16).to(device)
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


class _Phases:
    """Times each phase of a step, the ones inside of it left out."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._clock = busy_clock()
        self._stack = [_OUTSIDE]
        self._since = 0.0

    def __enter__(self) -> _Phases:
        self._listening = phases.listen(self._on_phase)
        self._listening.__enter__()
        self._since = self._clock()
        return self

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
        self.seconds[self._stack[-1]] += now - self._since  # type: ignore[assignment]
        self._since = now


class _Calls(DirectMode):  # type: ignore[no-untyped-call]
    """Collects the operators that compute, with their phases, and counts what stands between them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[str, Callable[[], object]]] = []
        self.counts: Counter[Any] = Counter()
        """Operators by their caller, views by `(caller, "view")`, modules, and tensors that are kept again."""
        self._stack = [_OUTSIDE]
        self._listening = phases.listen(self._on_phase)
        self._modules = ModulePath()

    def __enter__(self) -> Any:
        self._listening.__enter__()
        self._modules.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._modules.__exit__(None, None, None)
        self._listening.__exit__(None, None, None)
        self.counts[_MODULES] = self._modules.entered

    def _on_phase(self, name: str, entered: bool) -> None:
        if entered:
            self._stack.append(name)
        else:
            self._stack.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Notes an operator and runs it."""
        self.counts[_AGAIN] += self._stack[-1] == "backward" and keeps_again(func)
        if _only_views(func):
            self.counts[caller(), "view"] += 1
        else:
            self.counts[caller()] += 1
            self.found.append((self._stack[-1], functools.partial(func, *args, **(kwargs or {}))))
        return func(*args, **(kwargs or {}))


def _only_views(operator: Any) -> bool:
    """Whether an operator launches nothing: it shows a tensor in another way, or takes memory and leaves it as it is."""
    return bool(operator.is_view) or operator._opname.removeprefix("new_").startswith(("_unsafe_view", "empty"))
