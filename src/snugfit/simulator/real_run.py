"""What a simulation could not do is tried for real before anybody is told that a real run would fail as well.

The worker reads the request once more and, in place of the recording, takes one step on the host: weights, captured tensors
and a few samples get random numbers; where they go through, as many samples as the simulation had, if that is not too much.
Three things can come of it: the step fails in the same way (it is a mistake in what was given), it works (the simulation is
what falls short), or it was not tried, because the model is too large.
"""

from __future__ import annotations

import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from snugfit.errors import CannotSimulateError, SnugfitError, in_words
from snugfit.workers.failures import NOT_TRIED, Again, cannot_run, line_of

MOST_ELEMENTS = 20_000_000
"""Weights, captured tensors and samples with more numbers are not made."""
MOST_SECONDS = 30.0
SAMPLES = 2
_PER_NUMBER = 100
"""Activations that a number of the batch may make, where nobody has counted them."""


class NotTried(Exception):
    """Why no real step was taken."""


@dataclasses.dataclass(slots=True)
class Tried:
    """What real steps came to."""

    samples: int = SAMPLES
    """How many samples the last of them had."""
    error: Exception | None = None
    """What it raised; `NotTried`: there was none; None: all went through."""


class Refused(Again):
    """A simulated step failed with an error that a real one may have too."""

    def __init__(self, error: Exception, where: str, on_card: bool) -> None:
        super().__init__(where)
        self.error, self.where, self.on_card = error, where, on_card

    def judged(self, really: Callable[[], Tried]) -> SnugfitError:
        """Returns an InputError where a real step fails alike, a CannotSimulateError where it works."""
        try:
            tried = really()
        except Exception as error:
            tried = Tried(error=error)
        if tried.error is None:
            return CannotSimulateError(
                f"the step cannot be simulated{self.where}: {in_words(self.error)}. A real run on CPU with {tried.samples} "
                f"samples works, so this is a limitation of the simulator{self._or_a_mix()}. Write that line in another "
                "way, or measure the run on the device."
            )
        if isinstance(tried.error, NotTried):
            return cannot_run(self.error, self.where, f"{NOT_TRIED}: {tried.error}")
        if _alike(tried.error, self.error):
            found = f"The same happens in a real run on CPU with {tried.samples} samples"
        else:
            found = f"A real run on CPU with {tried.samples} samples of random numbers fails in another way"
        return cannot_run(self.error, self.where, f"{found} ({in_words(tried.error)})")

    def _or_a_mix(self) -> str:
        return ", or, as on a card there are two devices, a tensor made without device=x.device" if self.on_card else ""


def try_step(
    prepared: Callable[[], Callable[[Any], Any]],
    model: Any,
    captured: Any,
    optimizers: Sequence[Any],
    batches: Sequence[Any],
    split: Any,
    at_once: int | None,
) -> Tried:
    """Takes real steps on the host, with a few samples of each batch, then with as many as the simulation had at once.

    `prepared`: returns the step, when the weights have numbers.
    `split`, `at_once`: how the caller cuts batches into microbatches, and their samples; None: not at all.
    """
    tried = Tried()
    try:
        with _within_time():
            _fill_all(model, captured, optimizers)
            step = prepared()
            for batch in batches:
                tried.samples = SAMPLES
                step(_few(batch, split, SAMPLES))
                more = _more(batch, at_once)
                if more is not None:
                    tried.samples = more
                    step(_few(batch, split, more))
    except Exception as error:
        tried.error = error
    return tried


def _few(batch: Any, split: Any, samples: int) -> Any:
    """A few samples of a batch with random values; all of it where nobody says how it is cut."""
    from snugfit.recorder.materialise import filled_batch
    from snugfit.techniques.batches import first_tensor, split_batch, why_uncut
    from snugfit.training.fallbacks import elements

    if split is None and first_tensor(batch) is not None and not why_uncut(batch):
        return filled_batch(split_batch(batch, samples)[0])
    if elements(batch) > MOST_ELEMENTS:
        raise NotTried(f"its batch has {elements(batch):,} numbers, more than {MOST_ELEMENTS:,}")
    filled = filled_batch(batch)
    return filled if split is None else split(filled, samples)[0]


def _more(batch: Any, at_once: int | None) -> int | None:
    """As many samples as the simulation had at once; None where that is no more than a few, or too much to try."""
    from snugfit.techniques.batches import first_tensor
    from snugfit.training.fallbacks import elements

    tensor = first_tensor(batch)
    length = tensor.shape[0] if tensor is not None else 0
    samples = at_once or length
    share = min(samples / max(length, 1), 1)
    return None if samples <= SAMPLES or elements(batch) * share * _PER_NUMBER > MOST_ELEMENTS else samples


def _fill_all(model: Any, captured: Any, optimizers: Sequence[Any]) -> None:
    """Gives weights, captured tensors and optimizer state memory and random numbers, in place."""
    import torch
    from torch.nn.parameter import is_lazy

    from snugfit.recorder.materialise import fill

    held = [*model.parameters(), *model.buffers(), *captured]
    numbers = sum(tensor.numel() for tensor in held if not is_lazy(tensor))
    if numbers > MOST_ELEMENTS:
        raise NotTried(f"it would make {numbers:,} random numbers, more than {MOST_ELEMENTS:,}")
    if any(is_lazy(tensor) for tensor in held):
        raise NotTried("the model has lazy layers")
    torch.manual_seed(0)
    fill(model, captured, list(optimizers))


def _alike(one: BaseException, other: BaseException) -> bool:
    """Whether two errors are the same: one line, one class of Python's own."""
    return _plain_kind(one) is _plain_kind(other) and line_of(one) == line_of(other)


def _plain_kind(error: BaseException) -> type:
    return next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")


@contextmanager
def _within_time() -> Iterator[None]:
    """Context with a time limit; without one where there is no timer, or outside of the main thread."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise NotTried(f"it took longer than {MOST_SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
