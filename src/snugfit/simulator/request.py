"""What an estimate simulates, and the part of it that runs in a worker: build, shape the batch, record.

Imports no torch, so that the command line can send a request by name and read the recording without loading torch.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from snugfit.device_kinds import CPU, CUDA
from snugfit.errors import SnugfitError, SnugfitWarning
from snugfit.fake_device.assumptions import Assumptions
from snugfit.recipe import Recipe
from snugfit.recording.experts import expert_modules
from snugfit.recording.recording import Recording
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.declaration import loaded
from snugfit.workers import real_run
from snugfit.workers.real_run import Refused
from snugfit.workload import Workload, algorithm_and_storage

if TYPE_CHECKING:
    import torch

    from snugfit.fake_device.accelerator import Personality
    from snugfit.workloads.model_batches import TrainingBatch

Kind = tuple[str, tuple[int, int]]
"""Kind of device (`cuda` or `cpu`) and compute capability."""

SCHEDULE_STEPS = 1000
"""Length of a run whose schedule must know it; memory and time of a step do not depend on it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NamedModel:
    """A model by its name, and the shape of the batch it is trained on."""

    spec: str
    """torchvision:NAME, timm:NAME, hf:CONFIG or path/file.py:function."""
    model_args: tuple[str, ...] = ()
    """Arguments of its constructor, as typed (`key=value`)."""
    task: str | None = None
    """One of `workloads.tasks.TASKS`; None: what the model is for."""
    image_size: int | None = None
    """Side of the images; None: the model's own."""
    seq_len: int | None = None
    """Tokens of a sequence; None: 512, or fewer where the model takes fewer."""
    frames: int | None = None
    """Frames of a clip, for models of video; None: the model's own."""
    assume: Assumptions = dataclasses.field(default_factory=Assumptions)
    """What may be taken for granted about values."""


def record_named(
    named: NamedModel, batch_size: int, recipe: Recipe, kind: Kind, settings: Mapping[str, Any]
) -> Recording:
    """Records training of a model by name; runs in a worker.

    Args:
        named: The model and the shape of its batch.
        batch_size: Samples of one update.
        recipe: How the step is held in memory.
        kind: The kind of device.
        settings: Fields of `Workload`, optimizer included.

    Returns:
        The recording.

    Raises:
        InputError: The model does not exist, or does not fit its batch or the recipe.
        CannotSimulateError: Something in the step needs values.
    """
    _without_logs()
    task, model = build_named(named)
    from snugfit.workloads.tasks import READ

    made = batch_of(named, task, model, batch_size)
    arguments = {
        **settings,
        "batch_size": batch_size,
        **made.task.arguments(),
        "assume": named.assume.completed(made.assume),
    }
    # Of tasks whose data nobody reads, the loss is all that an evaluation has.
    reported = made.task if task in READ else None
    recorded = record_given(model, made.batch, recipe, kind, arguments, task=reported)
    return dataclasses.replace(recorded, answered=(*recorded.answered, *_assumed(named, task, made.assumed)))


def batch_of(
    named: NamedModel, task: str, model: torch.nn.Module, batch_size: int, device: str = "meta"
) -> TrainingBatch:
    """Returns one batch of a model by its name, and how the model is trained on it.

    Args:
        named: The model and the shape of its batch.
        task: Its task.
        model: The model itself.
        batch_size: Samples.
        device: Where the batch is made: `meta` without values, elsewhere with random ones.
    """
    from snugfit.workloads.model_batches import batch_for

    return batch_for(
        model,
        named.spec,
        task,
        batch_size=batch_size,
        image_size=named.image_size,
        seq_len=named.seq_len,
        frames=named.frames,
        device=device,
    )


def build_named(named: NamedModel) -> tuple[str, torch.nn.Module]:
    """Builds a model by its name without memory; runs in a worker.

    Args:
        named: The model.

    Returns:
        Its task and the model.

    Raises:
        InputError: The model does not exist.
    """
    gc.disable()  # the model's library is imported here; see the worker
    try:
        from snugfit.fake_device.materialise import without_memory
        from snugfit.workloads.model_batches import task_of
        from snugfit.workloads.models import build_model, parse_model_args

        task, model_args = task_of(named.spec, named.task), parse_model_args(named.model_args)

        def build(device: str) -> torch.nn.Module:
            init = "device" if device == "meta" else "host"
            return build_model(named.spec, model_args=model_args, task=task, init=init, device="meta")

        return task, without_memory(build)
    finally:
        gc.enable()


def _assumed(named: NamedModel, task: str, assumed: tuple[str, ...]) -> tuple[str, ...]:
    """What was decided for the person who named a model, in words."""
    if not named.spec.startswith("hf:"):
        return assumed
    from snugfit.workloads.hf import is_kind

    name = named.spec.partition(":")[2]
    sizes = (f"the sizes are those that transformers takes for {name} where nothing is said",) if is_kind(name) else ()
    return (*(() if named.task else (f"the task is {task}, after the config",)), *sizes, *assumed)


def record_given(
    model: Any, batch: Any, recipe: Recipe, kind: Kind, arguments: Mapping[str, Any], *, task: Any = None
) -> Recording:
    """Records training of a model that was given; runs in a worker.

    Args:
        model: A module on meta, or a function without arguments that builds one.
        batch: A batch, or a list of batches.
        recipe: How the step is held in memory.
        kind: The kind of device.
        arguments: The other arguments of `snugfit.prepare`.
        task: What is reported in evaluation; None: the loss.

    Returns:
        The recording.

    Raises:
        InputError: The model does not fit its batch or the recipe.
        CannotSimulateError: Something in the step needs values.
    """
    from snugfit.simulator.session import STEPS, record_training
    from snugfit.training.sparse_weights import check_sparse
    from snugfit.workloads.traits import model_traits

    subject = _Subject(model, batch, arguments.get("forward"))
    model, batches = subject.model, subject.batches
    if real_run.is_wanted():
        real_run.try_step(model, recipe, batches[0], arguments, subject.captured())
    optimizer = arguments.get("optimizer", "adamw")
    check_sparse(model, recipe, _workload(arguments, {}), named_optimizer=isinstance(optimizer, str))
    switchable = tuple(row.name for row in TECHNIQUES if row.nothing_to_switch and loaded(row.hooks).may_gain(model))
    given = dict(arguments)
    if given.get("batch_size") is None and given.get("split") is None:
        given["batch_size"] = _longest(batches)
    workload = _workload(given, model_traits(model, given.get("loss"), given.get("forward")))
    if given.get("lr_schedule", "constant") != "constant" and given.get("max_steps") is None:
        given["max_steps"] = max(SCHEDULE_STEPS, 2 * workload.warmup_steps)

    def run(personality: Personality) -> Recording:
        # One step more than batches, so that each of them also meets the optimizer's state.
        steps = max(STEPS, len(batches) + 1)
        return record_training(model, recipe, batches, personality=personality, steps=steps, task=task, arguments=given)

    return dataclasses.replace(subject.recorded(run, kind), workload=workload, switchable=switchable)


def record_step(
    step: Callable[[Any, Any, Any], Any],
    model: Any,
    optimizer: Any,
    batch: Any,
    kind: Kind,
    settings: Mapping[str, Any],
    *,
    on_host: bool,
    steps: int | None = None,
) -> Recording:
    """Records a hand-written step as it is; runs in a worker.

    Args:
        step: Function of (model, optimizer, batch).
        model: A module on meta, or a function without arguments that builds one.
        optimizer: A name, a function from parameters to an optimizer, an optimizer of the model, or None.
        batch: A batch, or a list of batches.
        kind: The kind of device.
        settings: lr, weight_decay, betas, momentum, for an optimizer by name; and `assume`.
        on_host: Whether the step finds its batch on the host.
        steps: How often it is called; None: twice, or once more than there are batches.

    Returns:
        The recording; its workload is None.

    Raises:
        InputError: The step cannot run.
        CannotSimulateError: Something in the step needs values.
    """
    import torch

    from snugfit.fake_device.materialise import Materialiser
    from snugfit.simulator.session import STEPS, record_own_step
    from snugfit.training.phases import phase

    subject = _Subject(model, batch, None)
    model, batches = subject.model, subject.batches
    settings = dict(settings)
    assumptions = settings.pop("assume", None)
    used = _optimizer_function(optimizer, settings, model) if isinstance(optimizer, str) else optimizer
    if real_run.is_wanted():
        real_run.try_own_step(step, model, used, batches[0], subject.captured())
    turn = 0

    def each(model: Any, optimizer: Any, given: Any) -> None:
        nonlocal turn
        if len(batches) > 1:
            with phase("data"):
                place = torch.device("cpu") if on_host else _personality(kind).device
                given = Materialiser().tree(batches[turn % len(batches)], place)
            turn += 1
        step(model, optimizer, given)

    calls = steps or max(STEPS, len(batches) + 1)

    def run(personality: Personality) -> Recording:
        given = batches[0] if len(batches) == 1 else None
        batch_on: Any = "host" if on_host else "device"
        return record_own_step(
            each, model, used, given, personality=personality, steps=calls, batch_on=batch_on, assumptions=assumptions
        )

    return dataclasses.replace(subject.recorded(run, kind), steps=calls)


class _Subject:
    """The model and the batches of a request, whatever kind of step it asks for."""

    def __init__(self, model: Any, batch: Any, forward: Callable[[Any, Any], Any] | None) -> None:
        from snugfit.simulator.lazy_modules import give_shapes
        from snugfit.simulator.session import built

        self.model: torch.nn.Module = built(model)
        self.batches: list[Any] = batch if isinstance(batch, list) else [batch]
        give_shapes(self.model, self.batches[0], forward)

    def captured(self) -> list[torch.Tensor]:
        """Returns the tensors that the code holds besides."""
        from snugfit.fake_device.captured import captured_tensors
        from snugfit.workers import skeleton

        return captured_tensors(skeleton.arrived(), self.model, self.batches)

    def recorded(self, run: Callable[[Personality], Recording], kind: Kind) -> Recording:
        """Returns what `run` records on a kind of device, with what is known of the model and its batches."""
        from snugfit.fake_device.sparse_gradients import without_sparse_gradients
        from snugfit.techniques.blocks import find_blocks

        dense = without_sparse_gradients(self.model)
        block_names = tuple(find_blocks(self.model))
        weight_bytes, parameters = _weights(self.model)
        _without_logs()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", SnugfitWarning)
            try:
                recording = run(_personality(kind))
            except SnugfitError:
                raise
            except Exception as error:
                raise _refused(error, self.model, kind) from error
        return dataclasses.replace(
            recording,
            warnings=tuple(dict.fromkeys(str(warning.message) for warning in caught)),
            answered=(*recording.answered, *dense),
            batch_shape=_shape(self.batches),
            batches=len(self.batches),
            block_names=block_names,
            weight_bytes=weight_bytes,
            parameters=parameters,
            expert_modules=expert_modules(self.model),
        )


def _workload(given: Mapping[str, Any], traits: Mapping[str, bool]) -> Workload:
    from snugfit.training.given_optimizer import name_of

    plain = {name: given[name] for name in Workload.__dataclass_fields__ if given.get(name) is not None}
    return Workload.from_mapping({**traits, **plain, "optimizer": name_of(given.get("optimizer", "adamw"))})


def _optimizer_function(name: str, settings: Mapping[str, Any], model: torch.nn.Module) -> Callable[[Any], Any]:
    from snugfit.techniques.own_optimizer import own_optimizer
    from snugfit.training.optimizers import OPTIMIZER_TABLE, make_optimizer, optimizer_groups, parameter_groups

    algorithm, storage = algorithm_and_storage(name)
    workload = Workload.from_mapping({**settings, "optimizer": algorithm})
    own = own_optimizer(name)
    if own is not None:
        own.load()
        recipe = Recipe(optimizer=storage)  # type: ignore[arg-type]

        def make(parameters: Any) -> Any:
            weights = list(parameters)
            groups = optimizer_groups(model, parameter_groups(weights, workload), recipe, workload)
            return make_optimizer(recipe, workload, groups, weights[0].device)

        return make
    row = OPTIMIZER_TABLE[name]
    given = {field: getattr(workload, field) for field in ("lr", "weight_decay", *row.settings)}
    given = {field: value for field, value in given.items() if value is not None}
    return lambda parameters: row.cls(parameters, **given)


def _personality(kind: Kind) -> Personality:
    """Returns the kind of device as the fake device takes it."""
    from snugfit.fake_device.accelerator import Personality

    return Personality(kind=CPU if kind[0] == CPU else CUDA, capability=kind[1])


def _refused(error: Exception, model: torch.nn.Module, kind: Kind) -> Refused:
    """An error of torch or of the user's code, with the module and the line in which it happened."""
    import torch

    names = {id(module): name for name, module in model.named_modules() if name}
    module = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module) and id(owner) in names:
            module = f" in module {names[id(owner)]!r} ({type(owner).__name__})"
    return Refused(error, f"{real_run.line_of(error)}{module}", on_card=kind[0] != "cpu")


def _without_logs() -> None:
    """Torch logs a traceback when a fake kernel refuses its arguments; the error that follows says all of it."""
    for name, level in (("torch._subclasses.fake_tensor", logging.CRITICAL), ("torch.utils._pytree", logging.ERROR)):
        logging.getLogger(name).setLevel(level)


def _weights(model: torch.nn.Module) -> tuple[dict[str, int], int]:
    found: dict[str, int] = {}
    count = 0
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        found[owner] = found.get(owner, 0) + parameter.numel() * parameter.element_size()
        count += parameter.numel()
    return found, count


def _longest(batches: list[Any]) -> int | None:
    from snugfit.techniques.microbatch.apply import first_tensor

    lengths = [tensor.shape[0] for tensor in map(first_tensor, batches) if tensor is not None]
    return max(lengths, default=None) or None


def _shape(batches: list[Any]) -> str:
    from snugfit.techniques.microbatch.apply import first_tensor

    shapes = []
    for batch in batches:
        tensor = first_tensor(batch)
        if tensor is not None:
            shapes.append(" x ".join(map(str, tensor.shape)))
    shapes = list(dict.fromkeys(shapes))
    more = f" and {len(shapes) - 3} more shapes" if len(shapes) > 3 else ""
    return ", ".join(shapes[:3]) + more
