"""`snugfit.estimate`: what a training step would need, predicted without a GPU and without weights.

The step is recorded once for each generation of cards (they choose other kernels), and the recording is replayed: without
a limit for the peak, and at each card's size to see whether it fits. Imports no torch; a model by name is built in the
worker only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from snugfit.devices import DEVICES, Device, device_named
from snugfit.errors import InputError, RecipeError, warn
from snugfit.fake_device.personality import Personality
from snugfit.fields import check_keywords
from snugfit.nccl import among
from snugfit.recipe import Recipe
from snugfit.recording.generations import GENERATIONS
from snugfit.recording.recording import Recording
from snugfit.report.waiting import waits_are_told
from snugfit.run import Run
from snugfit.simulator.assembly import assemble
from snugfit.simulator.given_batches import NOT_GIVEN, given_batches
from snugfit.simulator.prediction import Estimate
from snugfit.simulator.request import NamedModel
from snugfit.simulator.subjects import given_subject, named_subject, title_of
from snugfit.techniques import left_to_the_loop
from snugfit.techniques.shard import groups_of
from snugfit.values.assumptions import AssumeArgument, assumptions_from
from snugfit.workload import Workload, algorithm_and_storage

if TYPE_CHECKING:
    from snugfit.workers.pool import Pool

DeviceArgument = str | Device | tuple[Device, ...] | None
MOST_RANKS = 64
"""Processes of which those that need less than the fullest are simulated, too."""
MOST_STEPS = 1000
"""Calls of a hand-written step that are recorded at most; each takes as long as the first."""


def estimate(
    model: Any,
    batch: Any = NOT_GIVEN,
    *,
    batches: Sequence[Any] | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    optimizer: Any = "adamw",
    recipe: Recipe | None = None,
    device: DeviceArgument = None,
    step: Callable[[Any, Any, Any], Any] | None = None,
    steps: int | None = None,
    forward: Callable[[Any, Any], Any] | None = None,
    split: Callable[[Any, int], list[Any]] | None = None,
    loss_weight: Any = "samples",
    assume: AssumeArgument = None,
    whole: bool = False,
    pool: Pool | None = None,
    **settings: Any,
) -> Estimate:
    """Predicts memory and time of training: building, first step, steady step and evaluation.

    The model is not changed and not copied; only shapes, dtypes and code go to the simulation's process.

    Args:
        model: A module on any device, meta included, or a function without arguments that builds one.
        batch: Tensors on any device, or (shape, dtype) pairs in their place, alone or in a tuple, a list or a dict: one
            batch, as `Trainer.step` takes it.
        batches: Several batches (of varying lengths) in place of one, which the steps go through.
        loss: Function of (output, batch) giving a 0-dim tensor; None where the model returns its loss.
        optimizer: adam, adamw, sgd, adafactor or muon, one with low-bit state (adamw8bit), an optimizer of the model's
            parameters, or a function from parameters to one; with `step` also None, or a list, tuple or dict of such, which
            the step gets.
        recipe: How the step is held in memory; None: plainly. With `step`: what `snugfit.apply` puts on the model.
        device: A card's name (`snugfit devices`) or several with commas, `cpu`, `local`, or None (or `all`): every card of
            the table.
        step: Function of (model, optimizer, batch), simulated as it is written, "cuda" in it included.
        steps: How often `step` is called. The peak is that of all calls; time and operations are the mean of those after
            the first. Where calls differ, give twice the number after which they repeat themselves, and one: a GAN that
            trains its generator at every fifth call takes 11. None: 2, or one more than there are batches.
        forward: Function of (model, batch); None: as for `snugfit.prepare`.
        split: Function of (batch, size) giving microbatches; None: along dimension 0.
        loss_weight: How losses of microbatches combine, as for `snugfit.prepare`.
        assume: What to take for values that simulated tensors do not have, such as `{"nonzero": 0.25}`: fields of
            `Assumptions` (`values/assumptions.py`). What was used is named in the estimate's `answered`.
        whole: Whether every block of the model is simulated, also where a few of them tell what all do. The answer is the
            same and takes longer. A step of your own is simulated whole anyway.
        pool: Workers to use; None: one of this process, which stays warm.
        **settings: Fields of `Workload`.

    Returns:
        The estimate.

    Raises:
        RecipeError: Recipe or settings are wrong or contradict each other.
        InputError: Model, step, batch and loss do not fit each other, or the device is unknown.
        CannotSimulateError: Something needs values, which simulated tensors do not have.
    """
    check_keywords(estimate, settings, Workload)
    cards = cards_of(device)
    assumptions = assumptions_from(assume)
    title, given = title_of(model), given_batches(batch, batches, step)
    if step is not None:
        check_step(step, recipe, steps, loss, forward, split)
    else:
        if steps is not None:
            raise InputError(
                "steps= says how often step= is called, and no step= is given: the trainer's own steps repeat themselves "
                "after two. Leave steps= out, or give batches=[...]."
            )
        if isinstance(optimizer, str):
            optimizer, storage = algorithm_and_storage(optimizer)
            if storage is not None and (recipe is None or recipe.optimizer is None):
                recipe = (recipe or Recipe()).replace(optimizer=storage)
        _check_training(optimizer, recipe, settings)
    from snugfit.simulator.batch_shapes import lives_on_host, said_how_it_was_read, skeleton_of

    settings = {**settings, "assume": assumptions}
    shapes = skeleton_of(given)
    if step is not None:
        from snugfit.simulator.own_step import record_step

        record = functools.partial(record_step, step, model, optimizer, shapes, settings, steps=steps, recipe=recipe)
        with said_how_it_was_read(given):
            return estimated(functools.partial(record, on_host=lives_on_host(given)), cards, recipe, title, _call(pool))
    arguments = {
        **settings, "loss": loss, "optimizer": optimizer, "forward": forward, "split": split, "loss_weight": loss_weight,
    }  # fmt: skip
    recipe = recipe or Recipe()
    record = functools.partial(given_subject(model, shapes, arguments).record, recipe, whole=whole)
    with said_how_it_was_read(given):
        return estimated(record, cards, recipe, title, _call(pool))


def estimate_named(
    named: NamedModel,
    *,
    recipe: Recipe | None = None,
    workload: Workload | None = None,
    device: DeviceArgument = None,
    whole: bool = False,
    pool: Pool | None = None,
) -> Estimate:
    """Predicts training of a model by name, built without weights; nothing is downloaded.

    `recipe`: how the step is held in memory; None: plainly.
    `workload`: optimizer, batch size and training settings; None: AdamW on batches of 64.
    `whole`: whether every block of the model is simulated, also where a few of them tell what all do.
    `pool`: workers to use; None: one of this process.
    """
    cards = cards_of(device)
    recipe, subject = recipe or Recipe(), named_subject(named, workload)
    return estimated(functools.partial(subject.record, recipe, whole=whole), cards, recipe, subject.title, _call(pool))


def cards_of(device: DeviceArgument) -> tuple[Device, ...]:
    """Returns the devices that an argument names, each once; None or `all` for every card."""
    if isinstance(device, Device):
        return (device,)
    if device is None or device == "all":
        return tuple(row for row in DEVICES if row.memory_bytes is not None)
    if isinstance(device, tuple):
        return device
    if not isinstance(device, str):
        raise InputError(f"device is a {type(device).__name__}; give a name, such as rtx-4090, cpu or all.")
    cards = {card.name: card for card in map(device_named, device.split(","))}
    if len(cards) > 1 and "cpu" in cards:
        raise InputError(f"device {device!r}: cpu counts other bytes than cards do, so it is asked for alone.")
    return tuple(cards.values())


def check_step(step: object, recipe: Recipe | None, steps: object, *others: object) -> None:
    """Raises for mistakes in what is asked of a hand-written step (`others`: what a trainer would take)."""
    if not callable(step):
        raise InputError(f"step is a {type(step).__name__}; give a function of (model, optimizer, batch).")
    if recipe is not None:
        problems = left_to_the_loop(_checked(recipe))
        if problems:
            raise RecipeError(problems, subject="recipe for a step of your own")
    if any(other is not None for other in others):
        raise InputError("step= does everything itself: leave loss=, forward= and split= out.")
    if steps is None:
        return
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise InputError(f"steps is {steps!r} ({type(steps).__name__}); give a whole number of calls of step=.")
    if not 1 <= steps <= MOST_STEPS:
        raise InputError(
            f"steps is {steps}; give 1 to {MOST_STEPS}: twice as many calls of step= as it takes until it repeats itself, "
            "and one."
        )


def _check_training(optimizer: object, recipe: Recipe | None, settings: Mapping[str, Any]) -> None:
    """Finds mistakes before a worker is started."""
    from snugfit.training.given_optimizer import name_of

    Run(_checked(recipe or Recipe()), Workload.from_mapping({**settings, "optimizer": name_of(optimizer)}))


def _checked(recipe: Recipe) -> Recipe:
    if not isinstance(recipe, Recipe):
        raise InputError(f"recipe is a {type(recipe).__name__}; give a snugfit.Recipe.")
    return recipe


def _call(pool: Pool | None) -> Callable[..., Any]:
    from snugfit.workers.pool import shared_pool

    return (pool or shared_pool()).call


def estimated(
    record: Callable[[Personality], Recording],
    cards: tuple[Device, ...],
    recipe: Recipe | None,
    title: str,
    call: Callable[..., Any],
) -> Estimate:
    """Records once for each kind of card among `cards`, and reads off what each of them would say; `call`: `Pool.call`."""
    kinds = [_kind(card) for card in cards]
    recorded: dict[Personality, Recording] = {}
    with waits_are_told():
        for kind in sorted(dict.fromkeys(kinds), key=lambda kind: kind.capability != GENERATIONS[0]):
            like = next((one for one in recorded.values() if kind.capability in one.same_on), None)
            doing = f"a training step of {title}"
            recorded[kind] = call(record, kind, doing=doing) if like is None else like.on(kind.capability)
    for message in dict.fromkeys(text for one in recorded.values() for text in one.warnings):
        warn(message)
    headline = next(iter(recorded.values()))
    if headline.workload is not None:
        cards = tuple(among(card, groups_of(recipe or Recipe(), headline.workload.ranks)) for card in cards)
    fewer = headline.alike_ranks[1:] if sum(map(len, headline.alike_ranks)) <= MOST_RANKS else ()
    doing = f"what other GPUs do of a training step of {title}"
    with waits_are_told():
        others = [call(record, next(iter(recorded)), doing=doing, rank=numbers[0]) for numbers in fewer]
    return assemble(
        [(card, recorded[kind]) for card, kind in zip(cards, kinds, strict=True)],
        headline=headline,
        recipe=recipe,
        title=title,
        others=list(zip(fewer, others, strict=True)),
    )


def _kind(card: Device) -> Personality:
    """The kind of device to record for a card."""
    if card.name == "cpu":
        return Personality(kind="cpu")
    return Personality(capability=card.compute_capability or GENERATIONS[0])
