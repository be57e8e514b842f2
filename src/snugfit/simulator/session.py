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
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from snugfit.errors import InputError, SnugfitError, SnugfitWarning
from snugfit.fake_device.accelerator import Personality
from snugfit.fake_device.assumptions import Assumptions
from snugfit.recipe import Recipe
from snugfit.recording.recording import Recording
from snugfit.workers.pool import Pool, shared_pool

STEPS = 2
"""Steps that are recorded: in the first optimizer state appears, the second is like all later ones."""
EVALUATED = 2
"""Batches that are evaluated: the first finds the cache as training left it, the second is like all later ones."""


def record(
    run: Callable[[Any], None],
    personality: Personality,
    captured: Iterable[Any] = (),
    assumptions: Assumptions | None = None,
) -> Recording:
    """Records a function on the fake device; only inside a worker, where the fake accelerator is registered.

    Args:
        run: Called with the recorder, whose `personality.device` is where tensors belong.
        personality: The kind of device.
        captured: Tensors that the code to be recorded holds by itself.
        assumptions: What may be taken for granted about values; None: the defaults.

    Returns:
        The recording.
    """
    import torch

    from snugfit.fake_device.detector_counts import stated_counts
    from snugfit.fake_device.library_kernels import stand_ins
    from snugfit.fake_device.matched_objects import told_matched
    from snugfit.fake_device.nested_tensors import told_padded_anywhere
    from snugfit.fake_device.packed_sequences import told_unpacked
    from snugfit.fake_device.padding_masks import told_padded
    from snugfit.fake_device.read_values import arrays_given
    from snugfit.fake_device.recorded_outputs import outputs_found
    from snugfit.fake_device.recorder import Recorder
    from snugfit.fake_device.registration import threads_of
    from snugfit.fake_device.translate import cuda_means_sim, pool_on_host, seen_random_state, told_finite
    from snugfit.training import phases

    recorder = Recorder(personality, assumptions)
    recorder.bring(captured)
    collecting = gc.isenabled()
    gc.disable()
    try:
        with ExitStack() as around:
            around.enter_context(phases.listen(recorder.on_phase))
            around.enter_context(threads_of(personality))
            around.enter_context(recorder)
            around.enter_context(seen_random_state(recorder.saw))
            around.enter_context(told_finite(recorder.is_true))
            around.enter_context(stand_ins(personality.kind))
            around.enter_context(told_unpacked(recorder.answered.add))
            around.enter_context(told_padded(recorder.answered.add))
            around.enter_context(stated_counts(recorder.answered.add))
            around.enter_context(told_matched(recorder.values, recorder.answered.add))
            around.enter_context(told_padded_anywhere(recorder.answered.add))
            around.enter_context(outputs_found())
            around.enter_context(arrays_given(recorder.values))
            if personality.kind == "cuda":
                around.enter_context(cuda_means_sim())
            else:
                around.enter_context(pool_on_host(recorder.host_pool))
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


def simulate_step(
    step: Callable[[Any, Any, Any], Any],
    model: Any,
    optimizer: Any,
    batch: Any,
    *,
    personality: Personality | None = None,
    steps: int = STEPS,
    batch_on: Literal["device", "host"] = "device",
    pool: Pool | None = None,
    assumptions: Assumptions | None = None,
) -> Recording:
    """Records a hand-written training step as it is, "cuda" in it included.

    Args:
        step: Function of (model, optimizer, batch).
        model: A module on any device, meta included, or a function without arguments that builds one.
        optimizer: An optimizer of the model, a function from parameters to one, or None.
        batch: What the step takes; its tensors may be on any device, meta included.
        personality: The kind of device; None: a CUDA card of capability 8.0.
        steps: How many steps are recorded.
        batch_on: Where the step finds the batch.
        pool: Workers to use; None: those of this process.
        assumptions: What may be taken for granted about values; None: the defaults.

    Returns:
        The recording.

    Raises:
        InputError: The model, step or batch cannot be sent or do not fit each other.
        CannotSimulateError: Something in the step needs values.
    """
    return (pool or shared_pool()).call(
        record_own_step, step, model, optimizer, batch, personality or Personality(), steps, batch_on, assumptions
    )


def simulate_training(
    model: Any,
    recipe: Recipe,
    batch: Any,
    *,
    personality: Personality | None = None,
    steps: int = STEPS,
    evaluate: bool = True,
    task: Any = None,
    pool: Pool | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Recording:
    """Records training by a recipe: building, first step, steady step, and an evaluation in between.

    Args:
        model: A module on any device, meta included, or a function without arguments that builds one.
        recipe: How the step is held in memory.
        batch: One batch of training, or a list of batches that the steps go through.
        personality: The kind of device; None: a CUDA card of capability 8.0.
        steps: How many steps are recorded.
        evaluate: Whether an evaluation is recorded between the steps; so does `evaluate` of the settings.
        task: What is reported in evaluation; None: the loss.
        pool: Workers to use; None: those of this process.
        arguments: The other arguments of `snugfit.prepare`: loss, optimizer, forward, split, loss_weight and settings;
            and `assume`, an `Assumptions`.

    Returns:
        The recording.

    Raises:
        InputError: The model, recipe or batch cannot be sent or do not fit each other.
        CannotSimulateError: Something in the step needs values.
    """
    return (pool or shared_pool()).call(
        record_training,
        model,
        recipe,
        batch,
        personality or Personality(),
        steps,
        evaluate,
        task,
        dict(arguments or {}),
    )


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
    personality: Personality,
    steps: int,
    batch_on: str,
    assumptions: Assumptions | None,
) -> Recording:
    """`simulate_step` itself, in the worker that this process is."""
    import torch

    from snugfit.fake_device.captured import captured_tensors
    from snugfit.fake_device.materialise import Materialiser
    from snugfit.workers import skeleton

    model = built(model)
    captured = captured_tensors(skeleton.arrived(), model, batch, *_held_by(optimizer))

    def run(recorder: Any) -> None:
        device = personality.device
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
            given = _batch(recorder, batch, place)
            step(model, used, given)
            del given

    return record(run, personality, captured, assumptions)


def record_training(
    model: Any,
    recipe: Recipe,
    batch: Any,
    personality: Personality,
    steps: int,
    evaluate: bool,
    task: Any,
    arguments: dict[str, Any],
) -> Recording:
    """`simulate_training` itself, in the worker that this process is."""
    from snugfit.simulator.pieces import FewerPieces, repeats
    from snugfit.techniques.own_optimizer import own_optimizer
    from snugfit.techniques.quantize.apply import load_libraries
    from snugfit.training.fallbacks import elements

    load_libraries(recipe)
    own = own_optimizer(recipe.optimizer)
    if own is not None:
        own.load()  # outside of the recording: it makes tables of real values
    model = built(model)
    evaluation = None
    if evaluate and arguments.get("evaluate", True):
        widest = max(batch, key=elements) if isinstance(batch, list) else batch
        evaluation = _Evaluation(task, arguments, recipe, widest)
    run = (model, recipe, batch, personality, steps, evaluation)
    if recipe.microbatch_size is None:
        return _recorded_training(*run, arguments)
    fewer = FewerPieces(arguments.get("split"))
    recording = _recorded_training(*run, {**arguments, "split": fewer})
    found = repeats(recording.trace, fewer.left_out)
    if found is None:
        return _recorded_training(*run, arguments)
    return dataclasses.replace(recording, trace=dataclasses.replace(recording.trace, repeats=found))


def _recorded_training(
    model: Any,
    recipe: Recipe,
    batch: Any,
    personality: Personality,
    steps: int,
    evaluation: _Evaluation | None,
    arguments: dict[str, Any],
) -> Recording:
    import torch

    from snugfit.fake_device.captured import captured_tensors
    from snugfit.fake_device.materialise import Materialiser
    from snugfit.training.course import Course
    from snugfit.training.evaluation import task_of
    from snugfit.training.phases import phase
    from snugfit.training.prepare import prepare
    from snugfit.workers import skeleton

    task = task_of(None) if evaluation is None else evaluation.task
    batches = batch if isinstance(batch, list) else [batch]
    host = torch.device("cpu")
    given_to_prepare = {name: value for name, value in arguments.items() if name != "assume"}

    def run(recorder: Any) -> None:
        device = personality.device
        with phase("build"):
            final = {"16": torch.float16, "bf16": torch.bfloat16}.get(recipe.true_precision or "")
            # Weights that are quantised go to the device layer by layer, from a model built on the host.
            built_on = host if recipe.init == "host" or recipe.quantize != "none" else device
            fake = Materialiser()
            _weights(recorder, fake, model, built_on, final if recipe.init != "host" else None)
            if isinstance(arguments.get("optimizer"), torch.optim.Optimizer):
                fake.optimizer(arguments["optimizer"], built_on)
            del fake  # it holds every tensor it made, and the weights before they are cast would live as long
        # Whether samples are coupled takes values to find out, and a fake step has none.
        coupled = bool(given_to_prepare.get("coupled_samples"))
        settings = {**given_to_prepare, "coupled_samples": coupled}
        course = Course(prepare(model, recipe, device=device, **settings), task)
        recorder.watch(course.trainer.model)
        place = host if personality.kind == "cuda" else device

        def then() -> bool:
            if evaluation is not None and recorder.step == 0:
                evaluation.run(course, place)
            recorder.step += 1
            return bool(recorder.step < steps)

        course.train((Materialiser().tree(one, place) for one in itertools.cycle(batches)), then=then)

    captured = captured_tensors(skeleton.arrived(), model, batches, *_held_by(arguments.get("optimizer")))
    return record(run, personality, captured, arguments.get("assume"))


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


def _batch(recorder: Any, batch: Any, device: Any) -> Any:
    """Returns a batch of fake tensors, made anew for each step as a loader does."""
    from snugfit.fake_device.materialise import Materialiser
    from snugfit.training.phases import phase

    with phase("data"):
        return Materialiser().tree(batch, device)
