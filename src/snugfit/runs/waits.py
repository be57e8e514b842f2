"""How long a run waits for its data, counted by the loop, and what to change about it.

The loop counts the seconds from asking for a batch to having it. The first batch of an epoch is counted apart, as workers
are started anew each epoch. A card works on while the host waits, so what the host then waits for the card (when it reads
losses) is taken off: only the rest is time in which the card had nothing to do. A processor has nothing else to work on, and
nothing is taken off.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

from snugfit.machine import usable_processors
from snugfit.recipe import Recipe

LATE_SECONDS = 1e-3
"""A batch that takes longer counts as late; one that lies ready comes out of a worker's queue in some 0.1 milliseconds."""
WORTH_SHARE = 0.05
"""Waiting for less than this share of the time of steps is not worth a word."""
BURSTS = 1 / 3
"""Where fewer than this share of the batches are late, loading is fast enough on average."""


@dataclasses.dataclass(kw_only=True, slots=True)
class Waits:
    """What a loop has waited for in its steps."""

    step_seconds: float = 0.0
    """Time of all steps, waiting included, evaluation and checkpoints left out."""
    batches: int = 0
    """Batches that were asked for, the first of each epoch left out."""
    late_batches: int = 0
    """How many of them took longer than `LATE_SECONDS`."""
    batch_seconds: float = 0.0
    """How long they took."""
    epochs: int = 0
    """Epochs that were begun."""
    epoch_seconds: float = 0.0
    """How long their first batches took, the start of workers included."""
    device_seconds: float = 0.0
    """How long the host waited for the device."""

    def counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields batches of an epoch and counts the wait for each; none is held while the next one is made."""
        first = True
        while True:
            begun = time.perf_counter()
            box = [next(batches, None)]  # a batch has no name here: nobody but the step holds it
            if box[0] is None:
                return
            seconds = time.perf_counter() - begun
            if first:  # or the first after a resume
                self.epochs += 1
                self.epoch_seconds += seconds
            else:
                self.batches += 1
                self.late_batches += seconds > LATE_SECONDS
                self.batch_seconds += seconds
            first = False
            yield box.pop()


def loading_report(waits: Waits, recipe: Recipe, *, on_card: bool, processors: int | None = None) -> dict[str, Any]:
    """Returns the run's report about loading; `processors` None: those that this process may use.

    Plain data: `wait_seconds`, `epoch_start_seconds`, `late_batches`, `idle_share` (of the time of steps), and
    `advice`, which is None where waiting is not worth a word.
    """
    waited = waits.batch_seconds + waits.epoch_seconds
    idle = max(0.0, waited - waits.device_seconds) if on_card else waited
    share = min(1.0, idle / waits.step_seconds) if waits.step_seconds else 0.0
    advice = None
    # A batch that takes less than a worker needs to hand it over is not made faster by one.
    if share >= WORTH_SHARE and (recipe.workers or waits.late_batches >= BURSTS * waits.batches):
        has = f"workers={recipe.workers}, pin_memory={recipe.pin_memory}, prefetch={recipe.prefetch}"
        changes = [_change(waits, recipe, processors or usable_processors(), on_card=on_card)]
        if on_card and not recipe.pin_memory:
            changes.append("pin_memory=True lets copies to the card run beside its work")
        who = "The card" if on_card else "Training"
        advice = (
            f"{who} waits for data in {share:.0%} of the time of its steps. The recipe has {has}: {'; '.join(changes)}."
        )
    return {
        "wait_seconds": waits.batch_seconds,
        "epoch_start_seconds": waits.epoch_seconds,
        "late_batches": waits.late_batches,
        "idle_share": share,
        "advice": advice,
    }


def _change(waits: Waits, recipe: Recipe, processors: int, *, on_card: bool) -> str:
    """What to change about the workers."""
    most = max(1, processors - 1)
    if recipe.workers and waits.epoch_seconds > waits.batch_seconds:
        each = waits.epoch_seconds / max(1, waits.epochs)
        return f"most of it is the start of the workers, {each:.2g} s each epoch, so take fewer of them, or none"
    if recipe.workers and waits.late_batches < BURSTS * waits.batches:
        late = f"only {waits.late_batches} of {waits.batches} batches came late"
        return f"{late}, so keep more of them ready: prefetch={2 * recipe.prefetch}"
    if recipe.workers >= most:
        return (
            f"there are {processors} processors, so more workers would hardly load faster; make a sample cheaper (images "
            "stored at the size of training, texts stored as tokens)"
        )
    if processors == 1 and not on_card:
        return "loading and training share the one processor, so workers would not help; make a sample cheaper"
    return f"try workers={min(most, _enough(waits, recipe.workers))}"


def _enough(waits: Waits, workers: int) -> int:
    """Enough workers to load a batch while a step is computed, and one more."""
    batches = max(1, waits.batches + waits.epochs)
    waited = (waits.batch_seconds + waits.epoch_seconds) / batches
    computed = max(waits.step_seconds / batches - waited, 1e-9)
    loading = workers * (waited + computed) if workers else waited
    return math.ceil(loading / computed) + 1
