"""What a simulation could not do is tried for real before anybody is told that a real run would fail as well.

The worker reads the request once more and, in place of the recording, takes one step on the host: weights, captured tensors
and a few samples get random numbers; where they go through, as many samples as the simulation had, if that is not too much.
Three things can come of it: the step fails in the same way (it is a mistake in what was given), it works (the simulation is
what falls short), or it was not tried, because the model is too large.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from snugfit.errors import CannotSimulateError, SnugfitError
from snugfit.workers.failures import NOT_TRIED, Again, cannot_run, in_one_line, line_of, named

MOST_ELEMENTS = 20_000_000
"""Weights, captured tensors and samples with more numbers are not made."""
MOST_SECONDS = 30.0
SAMPLES = 2
_PER_NUMBER = 100
"""Activations that a number of the batch may make, where nobody has counted them."""


class NotTried(Exception):
    """Why no real step was taken."""


class Finished(Exception):
    """A real step was taken and went through."""


_trying = False
_samples = SAMPLES
"""How many samples the step under way has."""


def is_wanted() -> bool:
    """Returns whether a real step is to be taken instead of a recording."""
    return _trying


class Refused(Again):
    """A simulated step failed with an error that a real one may have too."""

    def __init__(self, error: Exception, where: str, on_card: bool) -> None:
        super().__init__(where)
        self.error, self.where, self.on_card = error, where, on_card

    def judged(self, again: Callable[[], Any]) -> SnugfitError:
        """Returns an InputError where a real step fails alike, a CannotSimulateError where it works."""
        global _trying, _samples
        _trying, _samples = True, SAMPLES
        try:
            with _within_time():
                again()
        except Finished:
            return CannotSimulateError(
                f"the step cannot be simulated{self.where}: {named(self.error)}. A real run on CPU with {_samples} samples "
                f"works, so this is a limitation of the simulator{self._or_a_mix()}. Write that line in another way, or "
                "measure the run on the device."
            )
        except NotTried as reason:
            return cannot_run(self.error, self.where, f"{NOT_TRIED}: {reason}")
        except Exception as error:
            if _alike(error, self.error):
                found = f"The same happens in a real run on CPU with {_samples} samples"
            else:
                found = f"A real run on CPU with {_samples} samples of random numbers fails in another way"
            return cannot_run(self.error, self.where, f"{found} ({named(error)})")
        finally:
            _trying = False
        return cannot_run(self.error, self.where, NOT_TRIED)

    def _or_a_mix(self) -> str:
        return ", or, as on a card there are two devices, a tensor made without device=x.device" if self.on_card else ""


def try_step(model: Any, recipe: Any, batches: list[Any], arguments: Mapping[str, Any], captured: Any) -> None:
    """Takes real steps of `snugfit.prepare` on a few samples, on the host; always raises.

    Raises `Finished` where they went through, `NotTried` where they would take too much, or what a step raised.
    """
    from snugfit.errors import TrainingError
    from snugfit.training.prepare import prepare

    at_once = recipe.microbatch_size
    split = arguments.get("split") if at_once is not None else None
    _fill_all(model, captured, arguments.get("optimizer"))
    given = {name: value for name, value in arguments.items() if name not in ("assume", "batch_size", "gpus", "nodes")}
    few = [_few(batch, split, SAMPLES) for batch in batches]
    try:
        trainer = prepare(model, recipe.replace(microbatch_size=None), device="cpu", **given)
    except SnugfitError as error:
        raise NotTried(f"it cannot be prepared on cpu ({in_one_line(error)})") from error
    try:
        for batch, samples in zip(batches, few, strict=True):
            trainer.step(samples)
            trainer.finish()
            if (more := _more(batch, split, at_once)) is not None:
                trainer.step(more)
                trainer.finish()
    except TrainingError:
        pass  # random weights may give an infinite loss; the step ran
    raise Finished


def try_own_step(
    step: Callable[[Any, Any, Any], Any], model: Any, optimizer: Any, batches: list[Any], captured: Any
) -> None:
    """Takes real steps of the user's function on the host; always raises, as `try_step` does."""
    from snugfit.training.step_optimizers import made_of

    _fill_all(model, captured, optimizer)
    made = made_of(optimizer, model.parameters)
    for batch in batches:
        step(model, made, _few(batch, None, SAMPLES))
        if (more := _more(batch, None, None)) is not None:
            step(model, made, more)
    raise Finished


def _few(batch: Any, split: Any, samples: int) -> Any:
    """A few samples of a batch with random values; all of it where nobody says how it is cut."""
    from snugfit.fake_device.materialise import filled_batch
    from snugfit.techniques.batches import first_tensor, split_batch, why_uncut
    from snugfit.training.fallbacks import elements

    if split is None and first_tensor(batch) is not None and not why_uncut(batch):
        return filled_batch(split_batch(batch, samples)[0])
    if elements(batch) > MOST_ELEMENTS:
        raise NotTried(f"its batch has {elements(batch):,} numbers, more than {MOST_ELEMENTS:,}")
    filled = filled_batch(batch)
    return filled if split is None else split(filled, samples)[0]


def _more(batch: Any, split: Any, at_once: int | None) -> Any:
    """As many samples as the simulation had at once; None where that is no more than a few, or too much to try."""
    from snugfit.techniques.batches import first_tensor
    from snugfit.training.fallbacks import elements

    global _samples
    tensor = first_tensor(batch)
    length = tensor.shape[0] if tensor is not None else 0
    samples = at_once or length
    if samples <= SAMPLES or elements(batch) * min(samples / max(length, 1), 1) * _PER_NUMBER > MOST_ELEMENTS:
        return None
    _samples = samples
    return _few(batch, split, samples)


def _fill_all(model: Any, captured: Any, optimizers: Any) -> None:
    """Gives weights, captured tensors and optimizer state memory and random numbers, in place."""
    import torch
    from torch.nn.parameter import is_lazy

    from snugfit.fake_device.materialise import fill
    from snugfit.training.step_optimizers import each_optimizer

    held = [*model.parameters(), *model.buffers(), *captured]
    numbers = sum(tensor.numel() for tensor in held if not is_lazy(tensor))
    if numbers > MOST_ELEMENTS:
        raise NotTried(f"it would make {numbers:,} random numbers, more than {MOST_ELEMENTS:,}")
    if any(is_lazy(tensor) for tensor in held):
        raise NotTried("the model has lazy layers")
    torch.manual_seed(0)
    fill(model, captured, [one for one in each_optimizer(optimizers) if isinstance(one, torch.optim.Optimizer)])


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
