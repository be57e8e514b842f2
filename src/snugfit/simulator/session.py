"""One request in its worker: a model and batches without memory, and the steps that are recorded of them.

What is built and trained, and in which order, is said by the two kinds of session: by the trainer of `snugfit.prepare`
(`given_training.py`), or by a step that a person wrote (`own_step.py`). Each can be recorded, and tried for real.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from snugfit.errors import InputError, SnugfitError, SnugfitWarning, UncalledBlocksWarning
from snugfit.fake_device.personality import Personality
from snugfit.private_torch import one_rank, shared_units
from snugfit.recorder.captured import captured_tensors
from snugfit.recorder.materialise import remembered, without_memory
from snugfit.recorder.record import record
from snugfit.recording.experts import expert_modules
from snugfit.recording.recording import Recording
from snugfit.recording.replay import replay
from snugfit.simulator.batches import shape_in_words
from snugfit.simulator.given_batches import batches_of
from snugfit.simulator.lazy_modules import give_shapes
from snugfit.simulator.real_run import Refused, Tried, try_step
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.blocks import find_blocks
from snugfit.techniques.declaration import loaded
from snugfit.training.switch import take_over
from snugfit.uncollected import uncollected
from snugfit.values.assumptions import Assumptions
from snugfit.values.chance import MOST_TRIED, Chance
from snugfit.workers import skeleton
from snugfit.workers.code_constants import as_in_code
from snugfit.workers.failures import line_of
from snugfit.workloads.model_files import describe

STEPS = 2
"""Steps that are recorded: in the first optimizer state appears, the second is like all later ones."""
CARD = Personality()


class Session(ABC):
    """A model and its batches, how they are trained, and on what device."""

    def __init__(
        self,
        model: Any,
        batch: Any,
        personality: Personality,
        *,
        forward: Callable[[Any, Any], Any] | None,
        assume: Assumptions | None,
        steps: int | None,
    ) -> None:
        """Builds the model without memory, if it is a function; `forward` None: called with what the batch holds."""
        self.model: torch.nn.Module = _built(model)
        as_in_code(self.model)
        self.batches = batches_of(batch)
        give_shapes(self.model, self.batches[0], forward)
        self.personality = personality
        self.assume = assume
        self.steps = steps or max(STEPS, len(self.batches) + 1)
        """Steps that are recorded; by default each batch also meets the optimizer's state."""
        self.optimizers: list[torch.optim.Optimizer] = []
        """Those that came as objects."""
        self.shortened: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        """Context in which the model has fewer blocks; that of each recording, after the model was put back."""

    @abstractmethod
    def load(self) -> None:
        """Imports what the session needs, before anything is recorded."""

    @abstractmethod
    def build(self, recorder: Any) -> None:
        """Puts the model where training has it."""

    @abstractmethod
    def train(self, recorder: Any) -> None:
        """Takes the steps, with an evaluation between them where there is one."""

    @abstractmethod
    def real_step(self) -> Callable[[Any], Any]:
        """Returns a function that takes a step with a batch of real numbers, on the host."""

    @abstractmethod
    def known(self) -> tuple[Any, ...]:
        """Returns what holds tensors that training has besides model and batches, and that no code holds."""

    def recorded(self, **facts: Any) -> Recording:
        """Returns the recording, with what is known of the model and its batches, and more facts."""
        facts |= {
            "block_names": tuple(find_blocks(self.model)),
            "expert_modules": expert_modules(self.model),
            "batch_shape": shape_in_words(self.batches),
            "batches": len(self.batches),
            **weights_of(self.model),
        }
        without_logs()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", SnugfitWarning)
            try:
                self.load()
                self._restore = remembered(self.model, *self.optimizers)
                with uncollected():
                    recording = self.costliest()
            except SnugfitError:
                raise
            except Exception as error:
                raise _refused(error, self.model, self.personality) from error
        return dataclasses.replace(
            recording,
            warnings=tuple(dict.fromkeys(str(warning.message) for warning in caught)),
            uncalled_blocks=any(issubclass(warning.category, UncalledBlocksWarning) for warning in caught),
            **facts,
        )

    def tried(self) -> Tried:
        """Trains for real, on the host, with a few samples of random numbers, and returns what came of it."""
        captured = captured_tensors(skeleton.arrived(), [self.model], self.batches)
        return try_step(self.real_step, self.model, captured, self.optimizers, self.batches, *self.cut())

    def cut(self) -> tuple[Any, int | None]:
        """Returns the caller's way of cutting batches, and the samples that are on the device at once, if any is said."""
        return None, None

    def once(self, chance: Chance) -> Recording:
        """Records the session from its beginning, whatever was recorded before."""
        self.begin_anew()

        def run(recorder: Any) -> None:
            self.build(recorder)
            self.train(recorder)

        captured = self.captured()  # of the whole model: blocks that are left out are not captured by anything
        with self.shortened():
            return record(run, self.personality, captured, self.assume, chance)

    def begin_anew(self) -> None:
        """Makes model and optimizers what they were when they came."""
        take_over(self.model)
        self._restore()
        shared_units.forget_shares(self.model)

    def captured(self) -> list[torch.Tensor]:
        """Returns the tensors that code holds besides model, batches and what is known."""
        return captured_tensors(skeleton.arrived(), [self.model], self.batches, *self.known())

    def costliest(self) -> Recording:
        """Records with the likelier answer to random conditions, then with the others; keeps what takes most memory."""
        chance = Chance()
        best = self.once(chance)
        alternatives = chance.alternatives()
        peak_bytes = replay(best.trace).peak_allocated_bytes if alternatives else 0
        for place, stance in alternatives[:MOST_TRIED]:
            other = chance.otherwise(place, stance)
            try:
                recorded = self.once(other)
            except Exception:  # a length of 0, for example
                continue
            recorded_bytes = replay(recorded.trace).peak_allocated_bytes
            if recorded_bytes > peak_bytes:
                best, chance, peak_bytes = recorded, other, recorded_bytes
        return dataclasses.replace(best, answered=(*best.answered, *chance.in_words()))


def switchable(model: torch.nn.Module) -> tuple[str, ...]:
    """Returns the techniques that would find something to change in a model, of those that look for it."""
    return tuple(row.name for row in TECHNIQUES if row.planning.switchable and loaded(row.hooks).may_gain(model))


def without_logs() -> None:
    """Turns off torch's logs of refused fake kernels: the error that follows says all of it."""
    for name, level in (("torch._subclasses.fake_tensor", logging.CRITICAL), ("torch.utils._pytree", logging.ERROR)):
        logging.getLogger(name).setLevel(level)


def _built(model: Any) -> Any:
    """Returns the model; a function builds it without memory."""
    if isinstance(model, torch.nn.Module):
        return model
    try:
        made = without_memory(lambda _: model())
    except SnugfitError:
        raise
    except Exception as error:
        code = getattr(inspect.unwrap(model), "__code__", None)
        where = Path(code.co_filename) if code is not None else None
        raise InputError(f"the model function failed: {describe(error, where)}.") from error
    if not isinstance(made, torch.nn.Module):
        raise InputError(f"the model function returned a {type(made).__name__}; it must return a torch.nn.Module.")
    return made


def _refused(error: Exception, model: torch.nn.Module, personality: Personality) -> Refused:
    """The error for torch's or the user's own, with module and line."""
    names = {id(module): name for name, module in model.named_modules() if name}
    module = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module) and id(owner) in names:
            module = f" in module {names[id(owner)]!r} ({type(owner).__name__})"
    return Refused(error, f"{line_of(error)}{module}", on_card=personality.kind != "cpu")


def weights_of(model: torch.nn.Module, prefix: str = "") -> dict[str, Any]:
    """Returns the bytes of a model's weights by the module that owns them (names behind `prefix`), and their number."""
    found: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        owner = ".".join(filter(None, (prefix, name.rpartition(".")[0])))
        found[owner] = found.get(owner, 0) + parameter.numel() * parameter.element_size()
    return {"weight_bytes": found, "parameters": one_rank.all_parameters(model)}
