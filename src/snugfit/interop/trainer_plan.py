"""`snugfit.plan_for`: the `TrainingArguments` with which a built Trainer trains fastest in a memory budget.

Each candidate (`trainer_choices.py`) is simulated: three steps of that Trainer, and its evaluation.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from snugfit.devices import Device
from snugfit.errors import CannotSimulateError, DoesNotFitError, InputError
from snugfit.interop.trainer_choices import (
    adds_losses_up,
    checkpointing_of,
    level_of,
    plain,
    settings_of,
    splits_of,
    why_uncut,
)
from snugfit.interop.trainer_job import TrainerJob, check_trainer, set_fields
from snugfit.interop.trainer_plan_result import TrainerPlan, Tried
from snugfit.report.waiting import waits_are_told
from snugfit.techniques.levels import LEVELS, Level
from snugfit.units import MIB, format_bytes
from snugfit.values.assumptions import AssumeArgument

if TYPE_CHECKING:
    from snugfit.planner.margin import Margin
    from snugfit.planner.probe import Place

_OF_PIECES = (
    "The loss of a batch is then the mean of its microbatches': the same, but where samples count different numbers of "
    "tokens, or are compared with each other."
)


def plan_for(
    trainer: Any,
    budget: str | int | None = None,
    *,
    device: str | Device | None = None,
    allow: str | Iterable[str] = "exact",
    assume: AssumeArgument = None,
) -> TrainerPlan:
    """Finds the `TrainingArguments` with which a built Trainer trains fastest in a memory budget.

    The Trainer is not changed and nothing is trained. What is simulated is its own `train` with the widest samples of its
    data set, with its collator, loss, adapters and quantisation, and an evaluation at its own batch size.

    Args:
        trainer: A transformers.Trainer that is built, TRL's trainers included.
        budget: Device memory, such as "8GiB", or bytes; None: all of the card, of this machine's GPU what is free.
        device: A card's name (`snugfit devices`), `local`, `cpu`; None: this machine's GPU, or else its processor.
        allow: Fidelity that may be given up: "exact", or "rounding" (bf16, 8-bit moments), "different" (Adafactor, and
            smaller microbatches where the model has dropout), or both with a comma.
        assume: What to take for values that simulated tensors do not have, as for `snugfit.estimate`.

    Returns:
        The plan; `plan.arguments` are the changed arguments.

    Raises:
        InputError: Trainer, budget, device or allow cannot be used.
        DoesNotFitError: Nothing fits; names the smallest budget that would.
        CannotSimulateError: The Trainer's step needs values, which simulated tensors do not have.
    """
    from snugfit.planner.constraints import constraints_from
    from snugfit.planner.places import budget_for, place_for

    check_trainer(trainer)
    levels = constraints_from(allow=allow, device=device).allow
    if isinstance(budget, int) and budget < MIB:
        raise InputError(f"budget={budget} is {format_bytes(budget)}; write '{budget}GiB', if that is meant.")
    place, budget_bytes = budget_for(place_for(device), budget)
    with waits_are_told(), closing(_Search(trainer, place, assume, levels)) as search:
        return search.plan(budget_bytes)


class _Search:
    """Candidates for one Trainer on one device."""

    def __init__(self, trainer: Any, place: Place, assume: AssumeArgument, levels: frozenset[Level]) -> None:
        from snugfit.workers.pool import Pool

        self.trainer, self.place, self.assume, self.levels = trainer, place, assume, levels
        self.args = trainer.args
        self._known: dict[tuple[Any, ...], Tried] = {}
        self._pool = Pool(1)
        self._evaluated_at_once = self.args.per_device_eval_batch_size

    def close(self) -> None:
        """Ends the worker."""
        self._pool.close()

    def plan(self, budget_bytes: int) -> TrainerPlan:
        """Returns the fastest plan."""
        from snugfit.planner.margin import margin_for

        card = self.place.card
        margin = margin_for(self.place.personality.kind, card.context)
        capacity = margin.room_bytes(budget_bytes, card.context_bytes)
        as_it_is = self.probe({})
        if as_it_is.need_bytes is None:
            raise CannotSimulateError(f"the Trainer cannot be simulated: {as_it_is.refusal}")
        best = self._fastest(capacity)
        if best is None:
            raise self._does_not_fit(budget_bytes, margin)
        return self._result(best, as_it_is, budget_bytes, margin.bytes_of(budget_bytes))

    def _fastest(self, capacity: int) -> Tried | None:
        splits = list(splits_of(self.trainer, self.levels))
        whole = [
            (setting, self._fitting(setting, splits[:1], capacity))
            for setting in settings_of(self.trainer, self.levels, on_cpu=self.place.on_cpu)
        ]
        best = min((found for _, (found, _) in whole if found is not None), key=_seconds, default=None)
        # A smaller microbatch takes as long at least, so what is slower with the whole batch needs no second look. The
        # clock of a processor knows no such rule, so there it gets one as the Trainer cuts it.
        for setting, (found, largest) in sorted(whole, key=lambda row: _seconds(row[1][1])):
            faster = _seconds(largest) < _seconds(best)
            if found is None and (faster or self.place.on_cpu):
                smaller, _ = self._fitting(setting, splits[1:] if faster else [{}], capacity)
                best = min(best, smaller, key=_seconds)
        return best

    def _fitting(
        self, setting: Mapping[str, Any], splits: Sequence[Mapping[str, Any]], capacity: int
    ) -> tuple[Tried | None, Tried]:
        """The largest microbatch of a setting that fits, None where none does; and the last one looked at."""
        low, high = 0, len(splits) - 1
        found, last = None, self.probe({})
        while low <= high:
            middle = (low + high) // 2
            last = self._with_evaluation({**setting, **splits[middle]}, capacity)
            if last.need_bytes is not None and last.need_bytes <= capacity:
                found, high = last, middle - 1
            else:
                low = middle + 1
        return found, last

    def _with_evaluation(self, changes: Mapping[str, Any], capacity: int) -> Tried:
        """A candidate, with evaluations in smaller batches where it is they that do not fit."""
        while True:
            found = self.probe({**changes, "per_device_eval_batch_size": self._evaluated_at_once})
            too_much = found.need_bytes is not None and found.need_bytes > capacity
            if not too_much or found.peak_phase != "evaluation" or self._evaluated_at_once == 1:
                return found
            self._evaluated_at_once //= 2  # for the candidates to come as well, whose weights are the same ones

    def probe(self, changes: Mapping[str, Any]) -> Tried:
        """Simulates the Trainer with other arguments, once."""
        changes = {name: value for name, value in changes.items() if getattr(self.args, name) != value}
        key = tuple(sorted((name, str(value)) for name, value in changes.items()))
        if key not in self._known:
            self._known[key] = self._simulate(changes)
        return self._known[key]

    def _simulate(self, changes: Mapping[str, Any]) -> Tried:
        from snugfit.interop.recorded_training import recorded_job
        from snugfit.planner.probe import NEED_WITHIN, no_speeds
        from snugfit.recording.replays import Replays
        from snugfit.recording.tensor_bytes import TensorBytes

        try:
            recording = recorded_job(TrainerJob(self.trainer, changes), self.place.personality, self._pool, self.assume)
        except (CannotSimulateError, InputError) as error:
            return Tried(changes=changes, peak_phase="", refusal=str(error))
        on_cpu = self.place.on_cpu
        replays = Replays(recording.trace, TensorBytes() if on_cpu else None, within=NEED_WITHIN)
        timing = self.place.timing(recording)
        if timing is None:
            raise no_speeds(self.place.card)
        played = replays.unlimited
        held = played.peak_with_host_bytes if on_cpu else played.peak_reserved_bytes
        return Tried(
            changes=changes,
            need_bytes=held if on_cpu else replays.smallest_bytes,
            total_bytes=held + self.place.card.context_bytes,
            step_seconds=timing.step_seconds,
            peak_phase=played.peak_phase,
            recording=recording,
        )

    def _result(self, best: Tried, as_it_is: Tried, budget_bytes: int, margin_bytes: int) -> TrainerPlan:
        from snugfit.simulator.assembly import assemble

        assert best.recording is not None and best.need_bytes is not None and best.step_seconds is not None
        arguments = copy.copy(self.args)
        set_fields(arguments, best.changes)
        level = level_of(self.trainer, best.changes)
        title = type(self.trainer.model).__name__
        pieces = "gradient_accumulation_steps" in best.changes
        rows = [(self.place.card, best.recording)]
        return TrainerPlan(
            arguments=arguments,
            changes={name: (plain(getattr(self.args, name)), plain(value)) for name, value in best.changes.items()},
            estimate=assemble(rows, headline=best.recording, recipe=None, title=title),
            fidelity=level,
            need_bytes=best.need_bytes,
            budget_bytes=budget_bytes,
            margin_bytes=margin_bytes,
            step_seconds=best.step_seconds,
            as_it_is=as_it_is,
            tried=tuple(self._known.values()),
            notes=tuple(self._notes(pieces)),
        )

    def _notes(self, pieces: bool) -> Iterator[str]:
        """Yields what must be known of how the batch is cut."""
        uncut = why_uncut(self.trainer, self.levels)
        if uncut is not None:
            yield f"the batch is cut as it was: {uncut}."
        elif pieces and not adds_losses_up(self.trainer):
            yield _OF_PIECES

    def _does_not_fit(self, budget_bytes: int, margin: Margin) -> DoesNotFitError:
        """The error where nothing fits, with the least that would at each level of fidelity."""
        uncut = why_uncut(self.trainer, self.levels)
        allowed = max(self.levels, key=LEVELS.index)
        least: dict[Level, int] = {}
        for level in LEVELS[LEVELS.index(allowed) :]:
            up_to = self.levels | set(LEVELS[: LEVELS.index(level) + 1])
            smallest = list(splits_of(self.trainer, up_to))[-1]
            tried = list(settings_of(self.trainer, up_to, on_cpu=self.place.on_cpu))
            if level != allowed:  # what saves everything at once is enough to say that more would help
                tried = [{**tried[-1], **({"gradient_checkpointing": True} if checkpointing_of(self.trainer) else {})}]
            found = [self._with_evaluation({**setting, **smallest}, 0) for setting in tried]
            needs = [one.need_bytes for one in found if one.need_bytes is not None]
            if needs:
                size = margin.budget_for(min(needs), self.place.card.context_bytes) // MIB
                if size < min(least.values(), default=size + 1):
                    least[level] = size
        said = ", ".join(
            f"{size} MiB" + ("" if level == allowed else f" with allow={level!r}") for level, size in least.items()
        )
        return DoesNotFitError(
            f"no TrainingArguments let this Trainer train in {format_bytes(budget_bytes)} with its effective batch of "
            f"{self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps}. Budgets that "
            f"do: {said}. Or shorten the sequences, freeze weights, or train an adapter."
            + ("" if uncut is None else f" The batch is not cut otherwise than it is: {uncut}.")
        )


def _seconds(tried: Tried | None) -> float:
    return float("inf") if tried is None or tried.step_seconds is None else tried.step_seconds
