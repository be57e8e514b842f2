"""What is recorded of a run, and in which order: building, first step, steady step, evaluation.

`record_step` records a hand-written `step(model, optimizer, batch)` as it is; `record_given` records the very step of
`snugfit.prepare`. What is known of the model and its batches goes along with either.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import gc
import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import torch

from snugfit.errors import InputError
from snugfit.fake_device.chance import MOST_TRIED, Chance
from snugfit.fake_device.compiled import compiled_on_fakes
from snugfit.fake_device.line_search import calls_until_full
from snugfit.fake_device.materialise import Materialiser, remembered
from snugfit.fake_device.personality import Personality
from snugfit.fake_device.ranks import one_of
from snugfit.fake_device.record import record
from snugfit.phases import phase
from snugfit.private_torch import collectives
from snugfit.recipe import Recipe
from snugfit.recording.recording import Recording
from snugfit.recording.replay import replay
from snugfit.simulator import real_run
from snugfit.simulator.batches import EvaluationBatches, batch_share, longest
from snugfit.simulator.pieces import FewerPieces, repeats
from snugfit.simulator.recorded_model import RecordedModel
from snugfit.techniques import TECHNIQUES, each_builds
from snugfit.techniques.compile import eager_of
from snugfit.techniques.declaration import loaded
from snugfit.techniques.init.late import comes_late
from snugfit.techniques.own_optimizer import own_optimizer
from snugfit.techniques.quantize.apply import load_libraries
from snugfit.techniques.shard import alike, group_size
from snugfit.techniques.true_precision.apply import held_in
from snugfit.training.apply import apply
from snugfit.training.course import Course
from snugfit.training.evaluation import task_of
from snugfit.training.given_optimizer import name_of
from snugfit.training.optimizers import OPTIMIZER_TABLE, make_optimizer, optimizer_groups, parameter_groups
from snugfit.training.prepare import prepare
from snugfit.training.step_optimizers import each_optimizer, made_of, map_optimizers
from snugfit.training.switch import take_over
from snugfit.workers.pool import Pool, shared_pool
from snugfit.workload import CUSTOM_OPTIMIZER, Workload, algorithm_and_storage
from snugfit.workloads.sparse_weights import check_sparse
from snugfit.workloads.traits import model_traits

STEPS = 2
"""Steps that are recorded: in the first optimizer state appears, the second is like all later ones."""
CARD = Personality()
SCHEDULE_STEPS = 1000
"""Length of a run whose schedule must know it; memory and time of a step do not depend on it."""


def simulate_step(
    *request: Any,
    personality: Personality = CARD,
    batch_on: str = "device",
    steps: int = STEPS,
    pool: Pool | None = None,
) -> Recording:
    """Records a hand-written training step in a worker; arguments as `record_step`."""
    on_host = batch_on == "host"
    return (pool or shared_pool()).call(record_step, *request, {}, personality, on_host=on_host, steps=steps)


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
    """Records training by a recipe in a worker; arguments as `record_given`."""
    given = dict(arguments)
    return (pool or shared_pool()).call(record_given, model, batch, given, recipe, personality, **settings)


def _costliest(recorded: Callable[[Chance], Recording]) -> Recording:
    """Records with the likelier answer to random conditions, then with the others; keeps what takes most memory."""
    chance = Chance()
    best = recorded(chance)
    alternatives = chance.alternatives()
    peak_bytes = replay(best.trace).peak_allocated_bytes if alternatives else 0
    for place, stance in alternatives[:MOST_TRIED]:
        other = chance.otherwise(place, stance)
        try:
            tried = recorded(other)
        except Exception:  # a length of 0, for example
            continue
        tried_bytes = replay(tried.trace).peak_allocated_bytes
        if tried_bytes > peak_bytes:
            best, chance, peak_bytes = tried, other, tried_bytes
    return dataclasses.replace(best, answered=(*best.answered, *chance.in_words()))


def record_given(
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
) -> Recording:
    """Records building, first step, steady step and an evaluation by a recipe; runs in a worker.

    `arguments`: the other arguments of `snugfit.prepare`: loss, optimizer, forward, split, loss_weight and settings;
    and `assume`, an `Assumptions`.
    `steps`: how many steps are recorded; None: one more than batches, so that each also meets the optimizer's state.
    `rank`: which of the processes that share the batch; the first has the largest share of everything.
    `task`: what is reported in evaluation; None: the loss.
    `evaluate`: whether an evaluation is recorded between the steps; so does `evaluate` of the settings.
    """
    with_settings = functools.partial(
        _recorded_by, personality=personality, task=task, steps=steps, evaluate=evaluate, rank=rank
    )
    if recipe.compile == "none":
        return with_settings(model, batch, arguments, recipe)
    request = model, batch, dict(arguments)
    with contextlib.suppress(Exception):  # a failed compilation may keep references to weights, which bar a second use
        request = copy.deepcopy(request)
    try:
        return with_settings(model, batch, arguments, recipe)
    except Exception as error:  # compilers raise what they like; what is wrong with the request fails eagerly, too
        cause = error.__cause__ or error
        reason = f"{type(cause).__name__}: {' '.join(str(cause).split())[:300].rstrip('.')}"
        del cause
    gc.collect()
    recording = with_settings(*request, eager_of(recipe))
    told = (
        f"compile={recipe.compile!r} is predicted as if the step ran eagerly: it cannot be compiled for the simulated "
        f"device ({reason}). A compiled step mostly takes less memory and time; measure it to know."
    )
    return dataclasses.replace(recording, warnings=(*recording.warnings, told))


def _recorded_by(
    model: Any,
    batch: Any,
    arguments: Mapping[str, Any],
    recipe: Recipe,
    *,
    personality: Personality,
    task: Any,
    steps: int | None,
    evaluate: bool,
    rank: int,
) -> Recording:
    """Records training by exactly this recipe; a compiler's failure is an error here."""
    subject, made_here = RecordedModel(model, batch, arguments.get("forward")), not isinstance(model, torch.nn.Module)
    model, batches, given = subject.model, subject.batches, dict(arguments)
    optimizer = given.get("optimizer", "adamw")
    if real_run.is_wanted():
        real_run.try_step(model, eager_of(recipe), batches, given, subject.captured())
    check_sparse(model, recipe, _workload(given, {}), named_optimizer=isinstance(optimizer, str))
    switchable = _switchable(model)
    samples = longest(batches)
    if given.get("batch_size") is None and given.get("split") is None:
        given["batch_size"] = samples
    workload = _workload(given, model_traits(model, given.get("loss"), given.get("forward")))
    batches = [batch_share(one, given, workload, recipe, rank) for one in batches]
    if given.get("lr_schedule", "constant") != "constant" and given.get("max_steps") is None:
        given["max_steps"] = max(SCHEDULE_STEPS, 2 * workload.warmup_steps)
    # Whether samples are coupled takes values to find out, and a fake step has none.
    given["coupled_samples"] = bool(given.get("coupled_samples"))
    assumptions = given.pop("assume", None)
    calls = steps or max(STEPS, len(batches) + 1)
    one_builds = workload.ranks > 1 and made_here and recipe.init != "device" and not each_builds(recipe)
    late = comes_late(model, recipe) and not one_builds

    device, host = personality.device, torch.device("cpu")
    place = host if personality.is_card else device

    def recorded(evaluation: EvaluationBatches | None, chance: Chance, **other: Any) -> Recording:
        def train(recorder: Any) -> None:
            recorder.compiles = recipe.compile != "none"
            with phase("build"):
                # Weights that are quantised go to the device layer by layer, from a model built on the host.
                on_host = recipe.init == "host" or recipe.quantize != "none" or one_builds
                built_on, fake = host if on_host else device, Materialiser()
                # Of several processes one has values, or a file has, and what the others hold has no memory yet.
                empty = one_builds and (rank > 0 or recipe.init == "meta")
                fake.module(model, built_on, None if on_host else held_in(recipe), weights=not empty, late=late)
                recorder.watch(model)
                if isinstance(optimizer, torch.optim.Optimizer):
                    fake.optimizer(optimizer, built_on)
                del fake  # it holds every tensor it made, and the weights before they are cast would live as long
            trainer = prepare(model, recipe, device=device, **{**given, **other})
            course = Course(trainer, task_of(None) if evaluation is None else evaluation.task)
            recorder.watch(trainer.model)

            def then() -> bool:
                if evaluation is not None and recorder.step == 0:
                    evaluation.run(course, place)
                recorder.step += 1
                return bool(recorder.step < calls)

            course.train((Materialiser().tree(one, place) for one in itertools.cycle(batches)), then=then)

        with compiled_on_fakes(recipe, personality):
            return record(train, personality, subject.captured(*_held_by(optimizer)), assumptions, chance)

    def run() -> Recording:
        load_libraries(recipe)
        own = own_optimizer(recipe.optimizer)
        if own is not None:
            own.load()  # outside of the recording: it makes tables of real values
        evaluated = evaluate and given.get("evaluate", True)
        evaluation = EvaluationBatches(task, given, recipe, batches) if evaluated else None
        restore = remembered(model, optimizer)

        def again(chance: Chance, **other: Any) -> Recording:
            take_over(model)
            restore()
            collectives.forget_shares(model)
            return recorded(evaluation, chance, **other)

        def in_pieces(chance: Chance) -> Recording:
            if recipe.microbatch_size is None:
                return again(chance)
            fewer = FewerPieces(given.get("split"))
            recording = again(chance, split=fewer)
            # None: the second and the third microbatch did not do the same, so that none may stand for others.
            found = repeats(recording.trace, fewer.left_out)
            if found is None:
                return again(chance)
            return dataclasses.replace(recording, trace=dataclasses.replace(recording.trace, repeats=found))

        return _costliest(in_pieces)

    groups: tuple[tuple[int, ...], ...] = ()
    if workload.ranks > 1:
        lengths = [weight.shape[0] for weight in model.parameters() if weight.dim()]
        group = group_size(recipe, workload.ranks)
        groups = tuple(map(tuple, alike(samples, lengths, workload.ranks, group, recipe.tensor_parallel)))
        if (
            one_builds and not personality.is_card and len(groups[0]) > 1
        ):  # where the host is the device, who builds has more
            groups = (groups[0][:1], groups[0][1:], *groups[1:])
    with one_of(workload.ranks, rank, workload.gpus):
        return subject.recorded(
            run, personality, workload=workload, switchable=switchable, alike_ranks=groups, one_builds=one_builds
        )


def record_step(
    step: Callable[[Any, Any, Any], Any],
    model: Any,
    optimizer: Any,
    batch: Any,
    settings: Mapping[str, Any],
    personality: Personality,
    *,
    on_host: bool,
    steps: int | None = None,
    recipe: Recipe | None = None,
) -> Recording:
    """Records a hand-written step as it is, "cuda" in it included; runs in a worker.

    `optimizer`: a name, a function from parameters to an optimizer, an optimizer, None; or a list, tuple or dict of
    such.
    `settings`: lr, weight_decay, betas, momentum, for an optimizer by name; and `assume`, an `Assumptions`.
    `steps`: how often it is called; None: twice, or once more than there are batches, or until LBFGS has its history.
    `batch`: what the step takes, or `Batches` of such; their tensors may be on any device, meta included.
    `recipe`: what `snugfit.apply` puts on the model first, each step then being in its context; None: nothing.
    """
    subject = RecordedModel(model, batch, None)
    model, batches, settings = subject.model, subject.batches, dict(settings)
    assumptions = settings.pop("assume", None)
    used = map_optimizers(
        optimizer, lambda one: _optimizer_function(one, settings, model) if isinstance(one, str) else one
    )
    instances = [one for one in each_optimizer(used) if isinstance(one, torch.optim.Optimizer)]
    if real_run.is_wanted():
        real_run.try_own_step(step, model, used, batches, subject.captured())
    calls = steps or max(STEPS, len(batches) + 1)
    device = personality.device
    place = torch.device("cpu") if on_host else device
    facts: dict[str, Any] = {"steps": calls}
    if recipe is not None:
        facts["workload"] = Workload.from_mapping({**model_traits(model, None, None), "optimizer": CUSTOM_OPTIMIZER})
        facts["switchable"] = _switchable(model)
    packed = recipe is not None and recipe.quantize != "none"

    def follow(recorder: Any) -> None:
        fake = Materialiser()
        fake.module(model, torch.device("cpu") if packed else device)  # what is packed goes there layer by layer
        recorder.watch(model)
        applied: AbstractContextManager[Any] = contextlib.nullcontext()
        if recipe is not None:
            before = set(model.parameters())
            applied = apply(model, recipe, device=device)
            recorder.watch(model)
            if instances and not before >= set(model.parameters()):
                raise InputError(
                    "the recipe puts new weights beside the model's, and the optimizer that was given has only those of "
                    "before. Give a function from parameters to an optimizer, and in your loop make it after snugfit.apply."
                )
        model.to(device)  # buffers of a constructor that reads values are real, and still on the host
        for one in instances:
            fake.optimizer(one, device)
        made = made_of(used, model.parameters)
        # Only the optimizers say how long LBFGS takes to fill its history, and they are made here.
        nonlocal calls
        calls = steps or max(calls, *map(calls_until_full, each_optimizer(made)), 0)
        for number in range(calls):
            recorder.step = number
            with phase("data"):  # made anew for each step, as a loader does
                given = Materialiser().tree(batches[number % len(batches)], place)
            with applied:
                step(model, made, given)
            del given

    def run() -> Recording:
        restore = remembered(model, *instances)
        if recipe is not None:
            load_libraries(recipe)

        def recorded(chance: Chance) -> Recording:
            take_over(model)
            restore()
            # Parameters of another model than this one, which the step holds, are captured like all that it holds.
            state = [one.state.values() for one in instances]
            return record(follow, personality, subject.captured(list(map(list, state))), assumptions, chance)

        return _costliest(recorded)

    recording = subject.recorded(run, personality, **facts)
    return dataclasses.replace(recording, steps=calls)


def _switchable(model: torch.nn.Module) -> tuple[str, ...]:
    """Techniques that would find something to switch in a model."""
    return tuple(row.name for row in TECHNIQUES if row.planning.part == "switch" and loaded(row.hooks).may_gain(model))


def _held_by(optimizer: Any) -> tuple[Any, ...]:
    """Parameters and state of an optimizer that came as an object."""
    return (optimizer.param_groups, list(optimizer.state.values())) if hasattr(optimizer, "param_groups") else ()


def _workload(given: Mapping[str, Any], traits: Mapping[str, bool]) -> Workload:

    plain = {name: given[name] for name in Workload.__dataclass_fields__ if given.get(name) is not None}
    return Workload.from_mapping({**traits, **plain, "optimizer": name_of(given.get("optimizer", "adamw"))})


def _optimizer_function(name: str, settings: Mapping[str, Any], model: torch.nn.Module) -> Callable[[Any], Any]:

    algorithm, storage = algorithm_and_storage(name)
    workload = Workload.from_mapping({**settings, "optimizer": algorithm})
    own = own_optimizer(name)
    if own is not None:
        own.load()
        recipe = Recipe(optimizer=storage)  # type: ignore[arg-type]

        def make(parameters: Any) -> Any:
            weights = list(parameters)
            named = dict(model.named_parameters())
            groups = optimizer_groups(model, named, parameter_groups(weights, workload), recipe, workload)
            return make_optimizer(recipe, workload, groups, weights[0].device)

        return make
    row = OPTIMIZER_TABLE[name]
    given = {field: getattr(workload, field) for field in ("lr", "weight_decay", *row.settings)}
    given = {field: value for field, value in given.items() if value is not None}
    return lambda parameters: row.cls(parameters, **given)
