"""Training by the trainer of `snugfit.prepare`, recorded: building, first step, evaluation, steady step."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import gc
import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from snugfit.attributes import attributes_set
from snugfit.errors import SnugfitError, TrainingError, in_words, message_of
from snugfit.fake_device.personality import Personality
from snugfit.fake_device.ranks import one_of
from snugfit.phases import phase
from snugfit.recipe import Recipe
from snugfit.recorder.compiled import compiled_on_fakes
from snugfit.recorder.materialise import Materialiser
from snugfit.recorder.record import record
from snugfit.recording.recording import Recording
from snugfit.simulator.batches import EvaluationBatches, batch_share, longest
from snugfit.simulator.between_blocks import BetweenBlocks
from snugfit.simulator.equal_blocks import EqualBlocks, equal_blocks, recorded_by_few
from snugfit.simulator.pieces import FewerPieces, repeats
from snugfit.simulator.real_run import NotTried
from snugfit.simulator.session import CARD, Session, switchable, weights_of
from snugfit.simulator.too_heavy import TooHeavyError
from snugfit.techniques import each_builds
from snugfit.techniques.compile import eager_of
from snugfit.techniques.init.late import comes_late
from snugfit.techniques.own_optimizer import own_optimizer
from snugfit.techniques.quantize.apply import load_libraries
from snugfit.techniques.shard import alike, group_size
from snugfit.techniques.true_precision.apply import held_in
from snugfit.training.course import Course
from snugfit.training.evaluation import task_of
from snugfit.training.given_optimizer import name_of
from snugfit.training.prepare import prepare
from snugfit.values.chance import Chance
from snugfit.workers.pool import Pool, shared_pool
from snugfit.workload import Workload
from snugfit.workloads.sparse_weights import check_sparse
from snugfit.workloads.traits import model_traits

SCHEDULE_STEPS = 1000
"""Length of a run whose schedule must know it; memory and time of a step do not depend on it."""
_HOST = torch.device("cpu")


def simulate_training(
    model: Any,
    recipe: Recipe,
    batch: Any,
    *,
    personality: Personality = CARD,
    arguments: Mapping[str, Any] = MappingProxyType({}),
    pool: Pool | None = None,
    **settings: Any,
) -> Recording:
    """Records training by a recipe in a worker; arguments as `GivenTraining`."""
    recording: Recording = (pool or shared_pool()).call(
        record_given, model, batch, dict(arguments), recipe, personality, **settings
    )
    return recording


def record_given(
    model: Any,
    batch: Any,
    arguments: Mapping[str, Any],
    recipe: Recipe,
    personality: Personality,
    *,
    really: bool = False,
    **how: Any,
) -> Any:
    """Returns the recording of a `GivenTraining`, or what a real try on the host came to; runs in a worker.

    `really`: whether it is tried for real in place of being recorded.
    """
    if really:
        return GivenTraining(model, batch, arguments, eager_of(recipe), personality, **how).tried()
    if recipe.compile == "none":
        return GivenTraining(model, batch, arguments, recipe, personality, **how).whole()
    request = model, batch, dict(arguments)
    with contextlib.suppress(Exception):  # a failed compilation may keep references to weights, which bar a second use
        request = copy.deepcopy(request)
    try:
        return GivenTraining(model, batch, arguments, recipe, personality, **how).whole()
    except Exception as error:  # compilers raise what they like; what is wrong with the request fails eagerly, too
        reason = in_words(error.__cause__ or error)
    gc.collect()
    recording = GivenTraining(*request, eager_of(recipe), personality, **how).whole()
    told = (
        f"compile={recipe.compile!r} is predicted as if the step ran eagerly: it cannot be compiled for the simulated "
        f"device ({reason}). A compiled step mostly takes less memory and time; measure it to know."
    )
    return dataclasses.replace(recording, warnings=(*recording.warnings, told))


class GivenTraining(Session):
    """Training by exactly one recipe, as one of the processes that share the batch."""

    def __init__(
        self,
        model: Any,
        batch: Any,
        arguments: Mapping[str, Any],
        recipe: Recipe,
        personality: Personality,
        *,
        task: Any = None,
        steps: int | None = None,
        evaluate: bool = True,
        rank: int = 0,
        whole: bool = False,
        most_weight_bytes: int | None = None,
    ) -> None:
        """Takes a request apart into what `prepare` is given, the workload and this process's share of it.

        `arguments`: the other arguments of `snugfit.prepare`: loss, optimizer, forward, split, loss_weight and settings;
        and `assume`, an `Assumptions`.
        `task`: what is reported in evaluation; None: the loss.
        `evaluate`: whether an evaluation is recorded between the steps; so does `evaluate` of the settings.
        `rank`: which of the processes that share the batch; the first has the largest share of everything.
        `whole`: whether every block is recorded, also where they are alike.
        `most_weight_bytes`: with more than these there is nothing to record, and `TooHeavyError` says so; None: no limit.
        """
        given = dict(arguments)
        super().__init__(
            model, batch, personality, forward=given.get("forward"), assume=given.pop("assume", None), steps=steps
        )
        self.recipe, self.rank, self.task = recipe, rank, task
        self.every_block = whole
        self.optimizer = given.get("optimizer", "adamw")
        if isinstance(self.optimizer, torch.optim.Optimizer):
            self.optimizers = [self.optimizer]
        check_sparse(self.model, recipe, _workload(given, {}), named_optimizer=isinstance(self.optimizer, str))
        self.switchable = switchable(self.model)
        self.samples = longest(self.batches)
        if given.get("batch_size") is None and given.get("split") is None:
            given["batch_size"] = self.samples
        self.workload = _workload(given, model_traits(self.model, given.get("loss"), given.get("forward")))
        weights: dict[str, int] = weights_of(self.model)["weight_bytes"]
        if most_weight_bytes is not None and sum(weights.values()) > most_weight_bytes:
            raise TooHeavyError(weights, self.workload, self.switchable)
        self.shares = [batch_share(one, given, self.workload, recipe, rank) for one in self.batches]
        if given.get("lr_schedule", "constant") != "constant" and given.get("max_steps") is None:
            given["max_steps"] = max(SCHEDULE_STEPS, 2 * self.workload.warmup_steps)
        # Whether samples are coupled takes values to find out, and a fake step has none.
        given["coupled_samples"] = bool(given.get("coupled_samples"))
        self.given = given
        made_here = not isinstance(model, torch.nn.Module)
        self.one_builds = self.workload.ranks > 1 and made_here and recipe.init != "device" and not each_builds(recipe)
        self.evaluated = evaluate and given.get("evaluate", True)
        self.evaluation: EvaluationBatches | None = None
        self.split: Any = None
        """How batches are cut in the recording under way."""

    def whole(self) -> Recording:
        """Returns the recording, with the other processes that do the same."""
        with one_of(self.workload.ranks, self.rank, self.workload.gpus):
            return self.recorded(
                workload=self.workload,
                switchable=self.switchable,
                alike_ranks=self._alike_ranks(),
                one_builds=self.one_builds,
            )

    def load(self) -> None:
        """Imports the libraries of the recipe, and cuts the batches that are evaluated."""
        load_libraries(self.recipe)
        if (own := own_optimizer(self.recipe.optimizer)) is not None:
            own.load()  # outside of the recording: it makes tables of real values
        if self.evaluated:
            self.evaluation = EvaluationBatches(self.task, self.given, self.recipe, self.shares)

    def known(self) -> tuple[Any, ...]:
        """Returns parameters and state of an optimizer that came as an object."""
        return tuple(held for one in self.optimizers for held in (one.param_groups, list(one.state.values())))

    def costliest(self) -> Recording:
        """Records it with a few of its equal blocks, where those tell what all do."""
        blocks = None
        if not self.every_block and not self.optimizers:  # one that came as an object has the weights of all blocks
            blocks = equal_blocks(self.model, self.recipe, self.personality, self.given, self.workload.ranks)
        if blocks is not None and self._same_between(blocks):
            recording = recorded_by_few(blocks, functools.partial(self._with, blocks))
            if recording is not None:
                return recording
        return super().costliest()

    def _same_between(self, blocks: EqualBlocks) -> bool:
        between = BetweenBlocks(blocks, self.shares[0], self.given.get("forward"), self.personality.device)
        self.begin_anew()
        try:
            seen = record(functools.partial(between.run, self.model), self.personality, self.captured(), self.assume)
        except Exception:  # the whole recording says what is wrong, if anything is
            return False
        return between.alike(seen.trace)

    def _with(self, blocks: EqualBlocks, kept: int, chance: Chance) -> Recording:
        shortened, recipe = functools.partial(blocks.only, kept), blocks.recipe(self.recipe, kept)
        with attributes_set([self], shortened=shortened, recipe=recipe):
            return self.once(chance)

    def once(self, chance: Chance) -> Recording:
        """Records it with fewer microbatches, where three of them tell what all do."""
        if self.recipe.microbatch_size is not None:
            fewer = self.split = FewerPieces(self.given.get("split"), last=self.workload.ranks > 1)
            recording = self._compiled(chance)
            # None: the second and the third microbatch did not do the same, so that none may stand for others.
            found = repeats(recording.trace, fewer.left_out)
            if found is not None:
                return dataclasses.replace(recording, trace=dataclasses.replace(recording.trace, repeats=found))
        self.split = self.given.get("split")
        return self._compiled(chance)

    def _compiled(self, chance: Chance) -> Recording:
        with compiled_on_fakes(self.recipe, self.personality):
            return super().once(chance)

    def build(self, recorder: Any) -> None:
        """Puts the model where the recipe has it built: on the device, on the host, or nowhere yet."""
        recorder.compiles = self.recipe.compile != "none"
        with phase("build"):
            # Weights that are quantised go to the device layer by layer, from a model built on the host.
            on_host = self.recipe.init == "host" or self.recipe.quantize != "none" or self.one_builds
            built_on, fake = _HOST if on_host else self.personality.device, Materialiser()
            # Of several processes one has values, or a file has, and what the others hold has no memory yet.
            empty = self.one_builds and (self.rank > 0 or self.recipe.init == "meta")
            late = comes_late(self.model, self.recipe) and not self.one_builds
            fake.module(self.model, built_on, None if on_host else held_in(self.recipe), weights=not empty, late=late)
            recorder.watch(self.model)
            for one in self.optimizers:
                fake.optimizer(one, built_on)
            # `fake` holds every tensor it made, so that it must end here: weights would live on after they are cast.

    def train(self, recorder: Any) -> None:
        """Takes the steps, with an evaluation after the first."""
        device = self.personality.device
        trainer = prepare(self.model, self.recipe, device=device, **{**self.given, "split": self.split})
        course = Course(trainer, task_of(None) if self.evaluation is None else self.evaluation.task)
        recorder.watch(trainer.model)
        # The batch is on the host, as a loader leaves it.
        place = _HOST if self.personality.is_card else device

        def then() -> bool:
            if self.evaluation is not None and recorder.step == 0:
                self.evaluation.run(course, place)
            recorder.step += 1
            return bool(recorder.step < self.steps)

        course.train((Materialiser().tree(one, place) for one in itertools.cycle(self.shares)), then=then)

    def cut(self) -> tuple[Any, int | None]:
        """Returns the caller's way of cutting a batch, and how many samples are on the device at once."""
        at_once = self.recipe.microbatch_size
        return None if at_once is None else self.given.get("split"), at_once

    def real_step(self) -> Callable[[Any], Any]:
        """Returns a step of a trainer on the host, which takes each batch in one piece."""
        single = {name: value for name, value in self.given.items() if name not in ("batch_size", "gpus", "nodes")}
        try:
            trainer = prepare(self.model, self.recipe.replace(microbatch_size=None), device="cpu", **single)
        except SnugfitError as error:
            raise NotTried(f"it cannot be prepared on cpu ({message_of(error)})") from error

        def step(batch: Any) -> None:
            with contextlib.suppress(TrainingError):  # random weights may give an infinite loss; the step ran
                trainer.step(batch)
                trainer.finish()

        return step

    def _alike_ranks(self) -> tuple[tuple[int, ...], ...]:
        """Processes that hold equally much, the fullest first."""
        ranks = self.workload.ranks
        if ranks == 1:
            return ()
        lengths = [weight.shape[0] for weight in self.model.parameters() if weight.dim()]
        found = alike(self.samples, lengths, ranks, group_size(self.recipe, ranks), self.recipe.tensor_parallel)
        groups = tuple(map(tuple, found))
        if self.one_builds and not self.personality.is_card and len(groups[0]) > 1:
            return (groups[0][:1], groups[0][1:], *groups[1:])  # the host is the device, and who builds has more there
        return groups


def _workload(given: Mapping[str, Any], traits: Mapping[str, bool]) -> Workload:
    plain = {name: given[name] for name in Workload.__dataclass_fields__ if given.get(name) is not None}
    return Workload.from_mapping({**traits, **plain, "optimizer": name_of(given.get("optimizer", "adamw"))})
