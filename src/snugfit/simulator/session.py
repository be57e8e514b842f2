"""What is recorded of a run, and in which order: building, first step, steady step, evaluation.

`record` is the common part: it runs a function on the fake device inside a worker. `simulate_step` records a hand-written
`step(model, optimizer, batch)` as it is; `simulate_training` records the very step of `snugfit.prepare`.
"""

from __future__ import annotations

import dataclasses
import gc
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from snugfit.errors import InputError, SnugfitError, SnugfitWarning
from snugfit.fake_device.accelerator import Personality
from snugfit.fake_device.assumptions import Assumptions
from snugfit.recipe import Recipe
from snugfit.recording.recording import Recording
from snugfit.workers.pool import Pool, shared_pool

if TYPE_CHECKING:
    from snugfit.fake_device.chance import Chance

STEPS = 2
"""Steps that are recorded: in the first optimizer state appears, the second is like all later ones."""
EVALUATED = 2
"""Batches that are evaluated: the first finds the cache as training left it, the second is like all later ones."""


def record(
    run: Callable[[Any], None],
    personality: Personality,
    captured: Iterable[Any] = (),
    assumptions: Assumptions | None = None,
    chance: Chance | None = None,
) -> Recording:
    """Records a function on the fake device; only inside a worker, where the fake accelerator is registered.

    Args:
        run: Called with the recorder, whose `personality.device` is where tensors belong.
        personality: The kind of device.
        captured: Tensors that the code to be recorded holds by itself.
        assumptions: What may be taken for granted about values; None: the defaults.
        chance: What random numbers are taken to be, and gets who asked; None: each at its middle.

    Returns:
        The recording.
    """
    import torch

    from snugfit.fake_device.detector_counts import stated_counts
    from snugfit.fake_device.library_answers import library_answers
    from snugfit.fake_device.library_kernels import stand_ins
    from snugfit.fake_device.read_values import arrays_given
    from snugfit.fake_device.recorder import Recorder
    from snugfit.fake_device.registration import threads_of
    from snugfit.fake_device.replaced import replaced
    from snugfit.fake_device.translate import cuda_means_sim, pool_on_host, told
    from snugfit.training import phases

    recorder = Recorder(personality, assumptions)
    recorder.bring(captured)
    if chance is not None:
        recorder.values.chance = chance
    collecting = gc.isenabled()
    gc.disable()
    try:
        with ExitStack() as around:
            around.enter_context(phases.listen(recorder.on_phase))
            around.enter_context(threads_of(personality))
            around.enter_context(recorder)
            answers = [
                *told(torch.get_rng_state, recorder.saw),
                *told(torch.isfinite, recorder.values.is_true),
                *stand_ins(personality.kind),
                *stated_counts(recorder.answered.add),
                *library_answers(recorder.values, recorder.answered.add),
                *arrays_given(recorder.values),
            ]
            if personality.is_card:
                around.enter_context(cuda_means_sim())
            else:
                answers += pool_on_host(recorder.host_pool)
            around.enter_context(replaced(answers))
            run(recorder)
            trace = recorder.build()
    finally:
        if collecting:
            gc.enable()
    return Recording(
        trace=trace,
        answered=tuple(sorted(recorder.answered)),
        torch_version=str(torch.__version__),  # torch has a class of its own for it
        processor=recorder.processor,
        same_on=recorder.card.same,
    )


def _costliest(recorded: Callable[[Chance], Recording]) -> Recording:
    """Records with the likelier answer where random numbers decide, then with the others; keeps what takes most memory."""
    from snugfit.fake_device.chance import MOST_TRIED, Chance
    from snugfit.recording.replay import replay

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


def simulate_step(*request: Any, pool: Pool | None = None, **settings: Any) -> Recording:
    """Records a hand-written training step as it is, in a worker; arguments as `record_own_step`."""
    return (pool or shared_pool()).call(record_own_step, *request, **settings)


def simulate_training(*request: Any, pool: Pool | None = None, **settings: Any) -> Recording:
    """Records training by a recipe, in a worker; arguments as `record_training`."""
    return (pool or shared_pool()).call(record_training, *request, **settings)


def built(model: Any) -> Any:
    """Returns the model itself, built without memory when it is a function."""
    import torch

    from snugfit.fake_device.materialise import without_memory
    from snugfit.workloads.model_files import describe

    if isinstance(model, torch.nn.Module):
        return model
    if not callable(model):
        raise InputError(f"model is a {type(model).__name__}; give a torch.nn.Module or a function that builds one.")
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


def record_own_step(
    step: Callable[[Any, Any, Any], Any],
    model: Any,
    optimizer: Any,
    batch: Any,
    *,
    personality: Personality | None = None,
    steps: int = STEPS,
    batch_on: Literal["device", "host"] = "device",
    assumptions: Assumptions | None = None,
) -> Recording:
    """Records a hand-written training step as it is, "cuda" in it included; only inside a worker.

    Args:
        step: Function of (model, optimizer, batch).
        model: A module on any device, meta included, or a function without arguments that builds one.
        optimizer: An optimizer of the model, a function from parameters to one, or None.
        batch: What the step takes; its tensors may be on any device, meta included.
        personality: The kind of device; None: a CUDA card of capability 8.0.
        steps: How many steps are recorded.
        batch_on: Where the step finds the batch.
        assumptions: What may be taken for granted about values; None: the defaults.

    Returns:
        The recording.

    Raises:
        InputError: The model, step or batch do not fit each other.
        CannotSimulateError: Something in the step needs values.
    """
    import torch

    from snugfit.fake_device.captured import captured_tensors
    from snugfit.fake_device.materialise import Materialiser, remembered
    from snugfit.training.phases import phase
    from snugfit.workers import skeleton

    model = built(model)
    personality = personality or Personality()
    device = personality.device

    def run(recorder: Any) -> None:
        fake = Materialiser()
        _weights(recorder, fake, model, device)
        model.to(device)  # buffers of a constructor that reads values are real, and still on the host
        used: Any = optimizer
        if isinstance(optimizer, torch.optim.Optimizer):
            fake.optimizer(optimizer, device)
        else:
            used = optimizer(model.parameters()) if optimizer is not None else None
        place = device if batch_on == "device" else torch.device("cpu")
        for number in range(steps):
            recorder.step = number
            with phase("data"):  # made anew for each step, as a loader does
                given = Materialiser().tree(batch, place)
            step(model, used, given)
            del given

    restore = remembered(model, optimizer)

    def recorded(chance: Chance) -> Recording:
        restore()
        captured = captured_tensors(skeleton.arrived(), model, batch, *_held_by(optimizer))
        return record(run, personality, captured, assumptions, chance)

    return _costliest(recorded)


def record_training(
    model: Any,
    recipe: Recipe,
    batch: Any,
    *,
    personality: Personality | None = None,
    steps: int = STEPS,
    evaluate: bool = True,
    task: Any = None,
    arguments: Mapping[str, Any] | None = None,
) -> Recording:
    """Records training by a recipe: building, first step, steady step, and an evaluation in between; only inside a worker.

    Args:
        model: A module on any device, meta included, or a function without arguments that builds one.
        recipe: How the step is held in memory.
        batch: One batch of training, or a list of batches that the steps go through.
        personality: The kind of device; None: a CUDA card of capability 8.0.
        steps: How many steps are recorded.
        evaluate: Whether an evaluation is recorded between the steps; so does `evaluate` of the settings.
        task: What is reported in evaluation; None: the loss.
        arguments: The other arguments of `snugfit.prepare`: loss, optimizer, forward, split, loss_weight and settings;
            and `assume`, an `Assumptions`.

    Returns:
        The recording.

    Raises:
        InputError: The model, recipe or batch do not fit each other.
        CannotSimulateError: Something in the step needs values.
    """
    from snugfit.fake_device.captured import captured_tensors
    from snugfit.fake_device.materialise import remembered
    from snugfit.simulator.pieces import FewerPieces, repeats
    from snugfit.techniques.own_optimizer import own_optimizer
    from snugfit.techniques.quantize.apply import load_libraries
    from snugfit.training.fallbacks import elements
    from snugfit.training.take_over import take_over
    from snugfit.workers import skeleton

    load_libraries(recipe)
    own = own_optimizer(recipe.optimizer)
    if own is not None:
        own.load()  # outside of the recording: it makes tables of real values
    model, given = built(model), dict(arguments or {})
    restore = remembered(model, given.get("optimizer"))
    batches = batch if isinstance(batch, list) else [batch]
    evaluation = None
    if evaluate and given.get("evaluate", True):
        evaluation = _Evaluation(task, given, recipe, max(batches, key=elements))
    kind = personality or Personality()
    assumptions = given.pop("assume", None)
    # Whether samples are coupled takes values to find out, and a fake step has none.
    given["coupled_samples"] = bool(given.get("coupled_samples"))

    def recorded(chance: Chance, **other: Any) -> Recording:
        take_over(model)
        restore()
        captured = captured_tensors(skeleton.arrived(), model, batches, *_held_by(given.get("optimizer")))

        def run(recorder: Any) -> None:
            _train(recorder, model, recipe, batches, kind, steps, evaluation, {**given, **other})

        return record(run, kind, captured, assumptions, chance)

    def in_pieces(chance: Chance) -> Recording:
        fewer = FewerPieces(given.get("split"))
        recording = recorded(chance, split=fewer)
        found = repeats(recording.trace, fewer.left_out)
        if found is None:
            return recorded(chance)
        return dataclasses.replace(recording, trace=dataclasses.replace(recording.trace, repeats=found))

    return _costliest(recorded if recipe.microbatch_size is None else in_pieces)


def _train(
    recorder: Any,
    model: Any,
    recipe: Recipe,
    batches: Sequence[Any],
    personality: Personality,
    steps: int,
    evaluation: _Evaluation | None,
    arguments: Mapping[str, Any],
) -> None:
    import torch

    from snugfit.fake_device.materialise import Materialiser
    from snugfit.training.course import Course
    from snugfit.training.evaluation import task_of
    from snugfit.training.phases import phase
    from snugfit.training.prepare import prepare

    device, host = personality.device, torch.device("cpu")
    with phase("build"):
        final = {"16": torch.float16, "bf16": torch.bfloat16}.get(recipe.true_precision or "")
        # Weights that are quantised go to the device layer by layer, from a model built on the host.
        built_on = host if recipe.init == "host" or recipe.quantize != "none" else device
        fake = Materialiser()
        _weights(recorder, fake, model, built_on, final if recipe.init != "host" else None)
        if isinstance(arguments.get("optimizer"), torch.optim.Optimizer):
            fake.optimizer(arguments["optimizer"], built_on)
        del fake  # it holds every tensor it made, and the weights before they are cast would live as long
    task = task_of(None) if evaluation is None else evaluation.task
    course = Course(prepare(model, recipe, device=device, **arguments), task)
    recorder.watch(course.trainer.model)
    place = host if personality.is_card else device

    def then() -> bool:
        if evaluation is not None and recorder.step == 0:
            evaluation.run(course, place)
        recorder.step += 1
        return bool(recorder.step < steps)

    course.train((Materialiser().tree(one, place) for one in itertools.cycle(batches)), then=then)


class _Evaluation:
    """The loop's evaluation of held-out data, in batches as the loop reads them: as large as training's microbatches."""

    def __init__(self, task: Any, arguments: Mapping[str, Any], recipe: Recipe, batch: Any) -> None:
        """Cuts the batches, outside of the recording.

        Args:
            task: What is reported; None: the loss.
            arguments: Those of `snugfit.prepare`.
            recipe: How the step is held in memory.
            batch: A batch of training, without memory.
        """
        from snugfit.techniques.microbatch.apply import first_tensor, map_tensors, split_batch
        from snugfit.training.evaluation import evaluated_at_once, task_of

        self._own = task is None
        self.task = task or task_of(arguments.get("loss"), arguments.get("loss_weight", "samples"))
        pieces, tensor = [batch], first_tensor(batch)
        if recipe.microbatch_size is not None and tensor is not None:
            pieces = (arguments.get("split") or split_batch)(batch, evaluated_at_once(recipe, tensor.shape[0]))
        pieces = [pieces[i % len(pieces)] for i in range(EVALUATED)]
        self._batches = [map_tensors(piece, _in_its_own_memory) for piece in pieces]

    def run(self, course: Any, place: Any) -> None:
        """Evaluates.

        Args:
            course: The run on fake tensors.
            place: Where the loader puts batches.
        """
        from snugfit.fake_device.materialise import Materialiser

        try:
            course.evaluate(Materialiser().tree(batch, place) for batch in self._batches)
        except Exception as error:
            if not self._own:
                raise
            reason = " ".join(str(error).split())[:300].rstrip(".")
            warnings.warn(
                "evaluation is left out of the estimate: model and loss do not run as an evaluation does, in eval mode and "
                f"without gradients ({type(error).__name__}: {reason}). evaluate=False leaves it out without a word.",
                SnugfitWarning,
                stacklevel=2,
            )


def _in_its_own_memory(tensor: Any) -> Any:
    import torch

    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _held_by(optimizer: Any) -> tuple[Any, ...]:
    """Parameters and state of an optimizer that came as an object."""
    return (optimizer.param_groups, list(optimizer.state.values())) if hasattr(optimizer, "param_groups") else ()


def _weights(recorder: Any, fake: Any, model: Any, device: Any, dtype: Any = None) -> None:
    fake.module(model, device, dtype)
    recorder.watch(model)
