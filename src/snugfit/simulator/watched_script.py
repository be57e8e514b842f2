"""One run of a training script, watched: its models, its optimizer steps, its end.

It ends where an optimizer begins a fourth step; loaders of data end early, so that an evaluation behind an epoch is seen as
well. Where the weights are updated by hand or in hooks (LOMO), a backward pass counts as a step.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from snugfit.attributes import Change, replaced
from snugfit.errors import InputError
from snugfit.simulator.averaged_models import AveragedModels
from snugfit.simulator.compiled_code import compiled_from, is_traced
from snugfit.simulator.early_ends import early_ends
from snugfit.simulator.named_inputs import NamedInputs
from snugfit.simulator.script import EnoughSeen
from snugfit.simulator.script_seen import Observer
from snugfit.simulator.trained_models import trained_models
from snugfit.simulator.watched_loaders import WatchedLoaders, trains
from snugfit.workload import CUSTOM_OPTIMIZER, Workload

if TYPE_CHECKING:
    import torch

STEPS = 3
"""Optimizer steps that are recorded: state appears in the first, and the last is bounded by a step on either side."""
MOST_STEPS = 12
"""Steps of an optimizer after which another one, made as well, is no longer waited for."""
MOST_CALLS, MOST_SECONDS = 2000, 60
"""Calls of models, and their time, after which a script that has not stepped is given up: agents fill a memory first."""
BY_HAND = (
    "the script updates its weights by hand or in its backward passes (it made no optimizer of torch.optim that steps): "
    "each backward pass counts as one step, also where several are gathered for one update."
)


class WatchedScript:
    """One run of a script: its models, its optimizer steps, its end."""

    def __init__(self, owns: Callable[[str], bool] | None = None, *, for_plan: bool = False, most: int = STEPS) -> None:
        """Has seen nothing; `owns`: whether a file is the script's; `most`: backward passes without an optimizer."""
        self._for_plan, self._most_passes = for_plan, most
        self.observer = Observer(owns)
        self.switchable: list[str] = []
        self.traits: dict[str, bool] = {}
        self.steps = 0
        """Steps of the optimizer that stepped most; of a script without any, its backward passes."""
        self.notes: list[str] = []
        """What a reader of the estimate must know."""
        self.ends: list[list[tuple[str, int]]] = []
        """Files and lines that were running when training was ended, outermost first: once, or once for each cell."""
        self.gave_up = False
        """Whether what follows the training was ended, too."""
        self.batch_shape, self._largest = "", 0
        self._first: weakref.ref[torch.nn.Module] | None = None
        self.block_names: list[str] = []
        self.expert_modules: list[str] = []
        self.weight_bytes: dict[str, int] = {}
        self._all_parameters = self._trained_parameters = 0
        self._untrained: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """Models that were not called in training so far, and their parameters."""
        self._frozen: dict[int, int] = {}
        """Model that trains -> its parameters that trained in none of its calls."""
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.recorder: Any = None
        """What it is recorded by; None where it runs for real."""
        self._around = ExitStack()
        self._calls, self._passes, self._began = 0, 0, time.monotonic()
        self._trained_by_step = [0]
        """Calls of models that are trained, by step."""
        self._in_forward = self._in_backward = False
        self._skips = False
        """Whether a step is to leave the weights."""
        self.loaders = WatchedLoaders(self)
        self.averages = AveragedModels()

    @property
    def parameters(self) -> int:
        """Parameters of the models that are trained; averages and teachers, called without gradients, are others."""
        return self._trained_parameters or self._all_parameters

    @property
    def frozen(self) -> int:
        """Parameters of these models that did not train."""
        return sum(self._frozen.values())

    @property
    def workload(self) -> Workload:
        """What is learned, as far as fidelity depends on it."""
        names = {one.algorithm for one in self.observer.seen.optimizers}
        return Workload.from_mapping({**self.traits, "optimizer": names.pop() if len(names) == 1 else CUSTOM_OPTIMIZER})

    def note(self, said: str) -> None:
        """Takes down what a reader of the estimate must know, once."""
        if said not in self.notes:
            self.notes.append(said)

    def uneven_steps(self, answered: Iterable[str]) -> Iterator[str]:
        """Yields what to say where steps call the model more or less often and values that decide it may be assumed.

        An episode of reinforcement learning is as long as drawn actions make it.
        """
        calls = self._trained_by_step[: self.steps]
        decides = any(one.startswith(("assumed integer", "assumed branch")) for one in answered)
        if decides and self.observer.how_many == 1 and len(set(calls)) > 1:
            yield (
                f"the steps called the model {', '.join(map(str, calls))} times: where that follows from values that are "
                "assumed, a real step may call it more often and take more"
            )

    def begin(self, around: ExitStack) -> None:
        """Hooks modules and optimizers; before the recorder does, which needs the models' names."""
        self._around = around
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        for hook in (
            register_module_forward_pre_hook(self._entered),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ):
            around.callback(hook.remove)

    def changes(self) -> list[Change]:
        """Returns what makes a script's loaders end, and what notes its optimizers and its backward passes."""
        import torch

        passes = (torch.autograd, "backward", self._counting(torch.autograd.backward))
        return [*self.loaders.ending_early(), *self.observer.changes(), *self.averages.changes(), passes]

    def _counting(self, backward: Any) -> Any:
        """Returns `torch.autograd.backward` that counts where no optimizer does, and marks phases for a search."""

        def counted(*args: Any, **kwargs: Any) -> None:
            if self._in_backward:  # of a checkpoint
                backward(*args, **kwargs)
                return
            by_hand = not self.observer.how_many
            if by_hand and self._passes >= self._most_passes:
                raise EnoughSeen
            self._in_backward = True
            self.loaders.are_trained_on()
            try:
                with self._marked_backward():
                    backward(*args, **kwargs)
            finally:
                self._in_backward = False
            if by_hand:
                self._passes += 1
                if self._passes == 1:
                    self.notes.append(BY_HAND)
                self._reached(self._passes)

        return counted

    @contextmanager
    def _marked_backward(self) -> Iterator[None]:
        if not self._for_plan or self.recorder is None:
            yield
            return
        self._end_forward()
        self.recorder.on_phase("backward", True)
        try:
            yield
        finally:
            self.recorder.on_phase("backward", False)

    def _end_forward(self) -> None:
        if self._in_forward:
            self.recorder.on_phase("forward", False)
            self._in_forward = False

    def _entered(self, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        """Names a model that is called from outside of all modules for the first time."""
        if is_traced():
            return
        recorder = self.recorder
        if recorder is None or recorder.modules.stack or self.loaders.read_widths or self._in_backward:
            return
        module = compiled_from(module)
        if next(module.parameters(), None) is None:  # a loss function, say, or a transform of a data set
            return
        if self._for_plan and not self._in_forward and trains():
            self._in_forward = True
            recorder.on_phase("forward", True)
        self._calls += 1
        self._trained_by_step[-1] += trains()
        if self._calls > MOST_CALLS and time.monotonic() - self._began > MOST_SECONDS and (self.ends or not self.steps):
            if self.ends:
                self.gave_up = True
                raise EnoughSeen
            raise InputError(
                f"the script has called its models {self._calls} times in {MOST_SECONDS} s and no optimizer of torch.optim "
                "has stepped: there is no step to look at. Let it evaluate less before it trains."
            )
        if not recorder.modules.knows(module):
            self._meets(module, inputs)
        if trains():
            self._trained_parameters += self._untrained.pop(module, 0)
            if self._frozen.get(id(module)) != 0:  # as long as some of it has not trained
                frozen = sum(weight.numel() for weight in module.parameters() if not weight.requires_grad)
                self._frozen[id(module)] = min(frozen, self._frozen.get(id(module), frozen))
            self._takes(module, inputs)

    def _takes(self, module: torch.nn.Module, inputs: Any) -> None:
        """Takes down what a model is given to train on, and the shape of the largest batch of the first."""
        from snugfit.simulator.batches import shape_in_words
        from snugfit.training.fallbacks import elements

        if self.recorder is not None:
            self.recorder.ledger.claim_inputs(inputs)
            if self._first is None and not self.steps:
                self._begins_step()
        self._first = self._first or weakref.ref(module)
        if self._first() is module and (size := elements(inputs)) > self._largest:
            self._largest, self.batch_shape = size, shape_in_words([inputs])

    def _meets(self, module: torch.nn.Module, inputs: Any) -> None:
        """Takes down a model that was not called before."""
        from snugfit.recording.experts import expert_modules
        from snugfit.simulator.batches import shape_in_words
        from snugfit.simulator.session import switchable, weights_of
        from snugfit.workloads.traits import model_traits

        if self._for_plan:
            self.switchable += switchable(module)
            self.traits = {name: found or self.traits.get(name, False) for name, found in model_traits(module).items()}
        self.recorder.watch(module)
        # Taken down here and now: the model is gone when the script has ended.
        found = weights_of(module, self.recorder.modules.name_of(module))
        for owner, size in found["weight_bytes"].items():
            self.weight_bytes[owner] = self.weight_bytes.get(owner, 0) + size
        self._all_parameters += found["parameters"]
        self._untrained[module] = found["parameters"]
        self.expert_modules += expert_modules(module)
        self.block_names = self.recorder.modules.block_names
        if inputs or self.batch_shape:
            self.batch_shape = self.batch_shape or shape_in_words([inputs])  # where none is trained on by position
            return
        module.register_forward_pre_hook(NamedInputs(self._named), with_kwargs=True)

    def _named(self, module: torch.nn.Module, by_name: Any) -> None:
        """Takes down inputs that a model is given by name."""
        from snugfit.simulator.batches import shape_in_words

        if trains():  # it may generate texts before
            self._takes(module, by_name)
        self.batch_shape = self.batch_shape or shape_in_words([by_name])

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        waits = self.averages.waits(enough=self.steps >= MOST_STEPS, note=self.note)
        self._skips = self._counts.get(optimizer, 0) >= STEPS and self.enough and not waits
        if self._skips:
            if not self.loaders.one_ahead:
                raise EnoughSeen
            self.loaders.one_ahead = False
            optimizer.zero_grad()  # leaves no update of a batch that accelerate asked for ahead; an evaluation may follow
        elif self.recorder is not None:
            self._end_forward()
            for module in () if self._all_parameters else trained_models(optimizer):  # compiled code alone called them
                self._meets(compiled_from(module), ())
            self.observer.stepped(optimizer, self.recorder.modules)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if not self._skips:
            if BY_HAND in self.notes:  # a pass was tried before it was made
                self.notes.remove(BY_HAND)
            self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
            self._reached(self._counts[optimizer])

    @property
    def enough(self) -> bool:
        """Whether the steps were seen: of LBFGS until its history is full; of a second optimizer, two."""
        from snugfit.values.line_search import calls_until_full

        most = (one for one, count in self._counts.items() if count == self.steps)
        if self.steps < max([STEPS, *map(calls_until_full, most)]):
            return False
        return self.steps >= MOST_STEPS or all(self._counts.get(optimizer, 0) > 1 for optimizer in self.observer.made)

    def _reached(self, steps: int) -> None:
        if not self.steps:
            self._around.enter_context(replaced(early_ends(lambda: self.loaders.ended_early)))
        if steps > self.steps:
            self._trained_by_step.append(0)
        self.steps = max(self.steps, steps)
        self.loaders.stepped()
        if self.recorder is not None and self.steps != self.recorder.step:
            self.recorder.step = self.steps
            self._begins_step()

    def _begins_step(self) -> None:
        """Marks where a step begins, for what is read off by steps."""
        for entered in (True, False):
            self.recorder.on_phase("data", entered)
