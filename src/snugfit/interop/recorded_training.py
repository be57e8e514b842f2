"""A training that a library's loop drives, recorded in a worker: what is given is taken apart here and built anew there.

A trainer that is built cannot travel as it is: it holds a process's accelerator, its loggers, its place in a run. So what
makes it a training travels (`Job`), without values, and is unpacked where `torch.cuda` and code that compares devices
already answer for the fake card.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from snugfit.attributes import replaced
from snugfit.errors import InputError, in_words
from snugfit.fake_device.personality import Personality
from snugfit.recording.recording import Recording
from snugfit.simulator.compiled_script import record_as_it_compiles
from snugfit.simulator.estimate import DeviceArgument, cards_of, estimated
from snugfit.simulator.own_script import ASSUMED
from snugfit.simulator.prediction import Estimate
from snugfit.simulator.record_watched import record_watched
from snugfit.simulator.script import EnoughSeen
from snugfit.simulator.watched_script import WatchedScript
from snugfit.values.assumptions import AssumeArgument, assumptions_from

if TYPE_CHECKING:
    import torch

    from snugfit.workers.pool import Pool

TAKEN = {**ASSUMED, "nonzero": 1.0}
"""What is taken where a training reads values, for its metrics say: a mask that counts tokens takes all of them."""


class Job(Protocol):
    """A training that can be sent."""

    def as_built(self) -> AbstractContextManager[None]:
        """Context in which its model is as it was before the trainer put anything around it."""

    def owners(self) -> Iterator[torch.nn.Module]:
        """Yields the modules that hold its weights."""

    def optimizers(self) -> Iterator[torch.optim.Optimizer]:
        """Yields the optimizers that came with it."""

    def train(self, device: torch.device) -> None:
        """Takes the steps that are watched, with an evaluation between them if there is one; weights are on the device."""


def estimate_job(job: Job, title: str, *, device: DeviceArgument, assume: AssumeArgument = None) -> Estimate:
    """Predicts what a training takes, on a card by name, on cpu or on every card (None)."""
    record = functools.partial(record_job, _sent(job), assumptions_from(assume).completed(TAKEN))
    return estimated(record, cards_of(device), None, title, record_as_it_compiles)


def recorded_job(job: Job, personality: Personality, pool: Pool, assume: AssumeArgument = None) -> Recording:
    """Returns the recording of a training, made in a worker of a pool."""
    taken = assumptions_from(assume).completed(TAKEN)
    recording: Recording = pool.call(record_job, _sent(job), taken, personality, doing="a Trainer's steps")
    return recording


def _sent(job: Job) -> bytes:
    from snugfit.workers import skeleton

    try:
        with job.as_built():
            return skeleton.dumps(job)
    except Exception as error:
        path, found = skeleton.not_read(job)
        raise InputError(
            f"{path or 'something in the trainer'}, of type {type(found).__name__}, cannot be sent to the simulation "
            f"({in_words(error)}). Make it where it is used, or leave it out of the trainer."
        ) from error


def record_job(sent: bytes, assume: Any, personality: Personality, *, compiles: bool = False) -> Recording:
    """Records a job from `skeleton.dumps`; runs in a worker. `compiles`: whether `torch.compile` compiles."""
    from snugfit.fake_device.says_cuda import code_says_cuda
    from snugfit.recorder.captured import captured_tensors
    from snugfit.recorder.materialise import Materialiser
    from snugfit.workers import skeleton

    with code_says_cuda() if personality.is_card else contextlib.nullcontext():
        job: Job = skeleton.loads(sent)
    owners, optimizers = list(job.owners()), list(job.optimizers())
    states = [list(optimizer.state.values()) for optimizer in optimizers]
    captured = captured_tensors(skeleton.arrived(), owners, states, getattr(job, "samples", ()))
    watched = WatchedScript()

    def run(recorder: Any) -> None:
        watched.recorder = recorder
        fake = Materialiser()
        for owner in owners:
            fake.module(owner, personality.device)
        for optimizer in optimizers:
            fake.optimizer(optimizer, personality.device)
        with contextlib.suppress(EnoughSeen), replaced(watched.loaders.followed()):
            job.train(personality.device)
        if not watched.steps:
            raise InputError("the trainer took no step of an optimizer of torch.optim, so there is nothing to look at.")

    return record_watched(watched, run, assume, personality, captured, compiles=compiles)


class Samples:
    """A data set of a few samples that travelled: each is made anew when it is asked for, as a loader does."""

    def __init__(self, samples: Sequence[Any], times: int = 1, represented: int | None = None) -> None:
        """Holds samples, to be gone through so many times; `represented`: how many there really are, None: unknown."""
        self.samples, self.times, self.represented = samples, times, represented

    def __len__(self) -> int:
        return len(self.samples) * self.times

    def __getitem__(self, number: int) -> Any:
        from snugfit.techniques.batches import map_tensors

        return map_tensors(self.samples[number % len(self.samples)], _made_anew)


def _made_anew(leaf: torch.Tensor) -> torch.Tensor:
    """A fake tensor for one that travelled; a row of a table that is there all along is of no size."""
    import torch

    if leaf.device.type != "meta":
        return leaf
    if leaf.untyped_storage().nbytes() > leaf.numel() * leaf.element_size():
        return torch.empty((), dtype=leaf.dtype).expand(leaf.shape)
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype)


def modules_in(values: Mapping[str, Any]) -> Iterator[torch.nn.Module]:
    """Yields the modules among the values of a mapping, and in lists and mappings among them."""
    import torch

    for value in values.values():
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        yield from (one for one in inside if isinstance(one, torch.nn.Module))
