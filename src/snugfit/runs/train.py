"""`snugfit.train`: a whole run from Python, and what `snugfit train` does. Imports no torch until everything was checked."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.errors import InputError, RecipeError, option
from snugfit.planner.constraints import Constraints, constraints_from
from snugfit.recipe import Recipe
from snugfit.run import Run, by_owner, check_weights_file
from snugfit.runs import chosen as choices
from snugfit.runs.across_processes import across_processes
from snugfit.runs.chosen import Chosen
from snugfit.runs.joining import DEFAULT_TIMEOUT, processes_here
from snugfit.runs.place import RunPlace
from snugfit.runs.request import NAMES, How, Request, free_run_dir, model_arguments, resumed_request
from snugfit.runs.restart import forget, recipe_after
from snugfit.runs.result import TrainResult
from snugfit.runs.run_dir import DEFAULT_KEEP, RunDirectory, check_new
from snugfit.runs.run_follower import FollowedRun
from snugfit.units import parse_bytes
from snugfit.workload import Workload

if TYPE_CHECKING:
    from snugfit.workloads.data import Splits
    from snugfit.workloads.tasks import Task

DEFAULT_BATCH_SIZE = 64
_LOGGER = logging.getLogger(__name__)


@across_processes
def train(
    model: Any = None,
    data: Any = None,
    *,
    recipe: Any = None,
    plan: Any = None,
    budget: str | int | None = None,
    allow: str | Iterable[str] | None = None,
    pin: Mapping[str, Any] | None = None,
    forbid: str | Iterable[str] | None = None,
    host_budget: str | int | None = None,
    tune: bool = True,
    predict: bool = False,
    task: str | None = None,
    model_arg: Mapping[str, Any] | Iterable[str] | None = None,
    image_size: int | None = None,
    seq_len: int | None = None,
    samples: int | None = None,
    strict: bool | None = None,
    packing: bool | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    prompt_column: str | None = None,
    download: bool = False,
    device: str | None = None,
    loss: Any = None,
    loss_weight: Any = "samples",
    forward: Any = None,
    split: Any = None,
    collate: Callable[[list[Any]], Any] | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    keep_checkpoints: int = DEFAULT_KEEP,
    tensorboard: bool = False,
    progress: bool = True,
    rdzv: str | None = None,
    rdzv_timeout: float = DEFAULT_TIMEOUT,
    **options: Any,
) -> TrainResult:
    """Trains a model on data by a recipe, measures it, and leaves a run directory: `snugfit train` from Python.

    Every option of the command line is an argument of the same name. The process stays as it is: it is not started again,
    Ctrl-C is caught in the main thread only and while steps run, and what is asked of CUDA's memory is taken back.

    Args:
        model: A name (`torchvision:resnet18`, `timm:...`, `hf:DIR`, `path/file.py:function`); a module, which is trained in
            place; or a function without arguments that builds one. None with `resume`: the run's.
        data: A name (`digits`, `cifar10:DIR`, `csv:FILE`, ...), or map-style datasets: (train, validation) or (train,
            validation, test); validation and test may be None. None with `resume`: the run's.
        recipe: How the step is held in memory: a `Recipe`, its fields, a YAML file, or a plan; fields given as options go
            before it. None: plainly.
        plan: A plan to train by, in place of `recipe` and `budget`.
        budget: Plans for this device memory, such as "8GiB", and keeps to it.
        allow: Fidelity that the plan may give up: rounding, different, or both with a comma.
        pin: Recipe field -> value that the plan must keep; so is every recipe field given as an option.
        forbid: Recipe fields that the plan must leave plain.
        host_budget: Host memory that the plan may use; None: what is free.
        tune: Whether the first steps of a run with a plan go by recipes that promise about as much, in turn, and the others
            by the one that was the fastest; the update is of the same fidelity all the time.
        predict: Whether the recipe is also predicted before training, without a budget.
        task: image-classification, text-classification or causal-lm; None: what data and model are for.
        model_arg: Arguments of a named model's constructor.
        image_size: Side of the images; None: the model's own.
        seq_len: Most tokens of a text; None: 512, or fewer where the model takes fewer.
        samples: Training samples at most; of random data, how many there are.
        strict: Whether an image file that cannot be read stops the run.
        packing: Whether short texts share a row.
        text_column: Column of the texts.
        label_column: Column of the labels.
        prompt_column: Column of prompts.
        download: Whether data and `hf:` models may be fetched.
        device: auto, cpu, cuda, or `rehearse:CARD` to train on the processor as if a card of the table were there, with
            its memory and its end of memory; None: auto.
        loss: For a model or data of your own, function of (output, batch) or a loss of torch.nn; None: the task's, or the
            model's own.
        loss_weight: As for `snugfit.prepare`.
        forward: As for `snugfit.prepare`.
        split: As for `snugfit.prepare`.
        collate: From a list of samples of your datasets to a batch; None: torch's `default_collate`.
        run_dir: Where results go; None: runs/MODEL-DATA, numbered.
        resume: Whether to go on with the run in `run_dir`, exactly where it stopped.
        overwrite: Whether the run in `run_dir` is replaced.
        keep_checkpoints: Newest checkpoints that stay.
        tensorboard: Whether event files for TensorBoard are written.
        progress: Whether progress is shown on stderr. What was chosen on the way is logged under `snugfit`.
        rdzv: HOST:PORT where the processes of several machines (`nodes`) meet; the same on all of them.
        rdzv_timeout: Seconds that processes wait for each other at the start.
        **options: Fields of `Recipe` (precision, microbatch_size, checkpoint, ...) and of `Workload` (lr, epochs,
            batch_size, max_steps, seed, optimizer, ...). With `gpus` and `nodes` several processes share every batch:
            inside of `torchrun` or SLURM this one joins the others, else they are started, and a model that was given has
            what they have learned in the end.

    Returns:
        The result: what `--json` prints, and the model.

    Raises:
        InputError: Something that was given cannot be used.
        RecipeError: Listing every mistake in recipe and settings.
        DoesNotFitError: Nothing fits the budget; names the smallest that would.
        TrainingError: Training failed; says what is saved and how to go on.
        CannotSimulateError: The model cannot be predicted, which `budget` and `predict` need.
        TrainingStopped: A signal stopped it; says what is saved and how to go on.
    """
    arguments, processes = locals(), processes_here()
    told = {name: arguments[name] for name in NAMES if name in arguments}
    told["model_args"] = None if model_arg is None else model_arguments(model_arg)
    _check_options(options)
    _check_numbers(told, keep_checkpoints)
    constraints = {"allow": allow, "pin": pin, "forbid": forbid, "host_budget": host_budget}
    _check_choices(recipe, plan, budget, constraints, resume=resume)
    if resume and overwrite:
        raise InputError(f"{option('resume')} goes on with a run, {option('overwrite')} replaces it; give one of them.")
    if resume and run_dir is None:
        raise InputError(f"{option('resume')} needs {option('run_dir DIR')}, the run to go on with.")
    told |= {"model": _spec(model), "data": _spec(data)}
    given = None
    if not all(isinstance(one, str | None) for one in (model, data)) or any((loss, forward, split, collate)):
        from snugfit.runs.given import Given

        named = {name: None for name in ("model", "data") if isinstance(arguments[name], str)}
        objects = {field.name: arguments[field.name] for field in dataclasses.fields(Given)}
        given = Given(**{**objects, **named})
    planned = plan if plan is not None else recipe if hasattr(recipe, "fallbacks") else None
    base = None if recipe is None or planned is not None else _recipe_of(recipe)
    how = How(download=download, tensorboard=tensorboard, progress=progress, resume=resume)
    if resume:
        assert run_dir is not None
        path = Path(run_dir)
        with (RunDirectory if processes.first else FollowedRun).open(path, keep=keep_checkpoints) as run:
            stored = Request.from_mapping(run.read_workload())
            by, request = resumed_request(told, options, base, run.read_recipe(), stored)
            request = dataclasses.replace(request, given=_same_objects(stored, given))
            summary = run.read_summary()
            if summary is not None and _is_finished(request, summary):
                _LOGGER.info("the run in %s is finished; this is its result.", path)
                return TrainResult.of(summary)
            run.check_checkpoints()
            before = choices.chosen_before(by, run.read_plan(), tune=tune)
            by = processes.from_first(lambda: recipe_after(path, by, before.fallbacks, request.settings))
            before = dataclasses.replace(before, recipe=by)
            from snugfit.runs.carrying_out import carry_out

            return carry_out(
                request, how, lambda *_: before, lambda known, by: run.described(by.recipe, known.to_mapping())
            )
    request, by = _new_request(told, options, base, planned, given)
    limits = None if budget is None else _constraints(budget, constraints, options, base)
    path = processes.from_first(
        lambda: Path(run_dir) if run_dir is not None else free_run_dir(request.model, request.data)
    )
    if processes.first:
        check_new(path, overwrite=overwrite)

    def choose(known: Request, opened: Splits, task: Task, where: RunPlace) -> Chosen:
        if planned is not None:
            return choices.chosen_by(planned, tune=tune)
        if budget is None and not predict:
            return Chosen(recipe=by)
        from snugfit.runs.planned import plan_training, predicted_for

        if budget is None:
            return Chosen(recipe=by, predicted=predicted_for(known, opened, task, where, by))
        assert limits is not None
        return choices.chosen_by(plan_training(known, opened, task, where, budget, limits), tune=tune)

    def open_run(known: Request, by: Chosen) -> RunDirectory:
        run: RunDirectory = FollowedRun(path, keep=keep_checkpoints)
        if processes.first:
            run = RunDirectory.create(
                path, by.recipe, known.to_mapping(), plan=by.plan, overwrite=overwrite, keep=keep_checkpoints
            )
            forget(path)
        processes.from_first(lambda: None)  # the others go on when it is there
        return run

    from snugfit.runs.carrying_out import carry_out

    return carry_out(request, how, lambda *parts: processes.from_first(lambda: choose(*parts)), open_run)


def _check_options(options: Mapping[str, Any]) -> None:
    """Raises for names that are no option at all, with a hint among all there are."""
    from inspect import signature

    from snugfit.errors import nearest
    from snugfit.fields import field_infos

    fields = {*field_infos(Recipe), *field_infos(Workload)}
    wrong = [name for name in options if name not in fields]
    if wrong:
        known = [*signature(train).parameters, *fields]
        hints = [f"{name!r} is no option; {nearest(name, known)}see snugfit.train." for name in wrong]
        raise RecipeError(hints, subject="options of the run")


def _check_numbers(told: Mapping[str, Any], keep: int) -> None:
    if keep < 2:
        raise InputError(f"{option('keep_checkpoints')} is {keep}; give at least 2: a damaged one needs a predecessor.")
    for name in ("image_size", "seq_len", "samples"):
        if told[name] is not None and told[name] < 1:
            raise InputError(f"{option(name)} is {told[name]}; it must be at least 1.")


def _check_choices(recipe: Any, plan: Any, budget: Any, constraints: Mapping[str, Any], *, resume: bool) -> None:
    """Raises for options of a plan where none is asked for, and for a plan where the run has a recipe already."""
    given = [option(name) for name, value in constraints.items() if value]
    if budget is None and given:
        raise InputError(f"{', '.join(given)} belongs to a plan; give {option('budget SIZE')} too.")
    if resume and (budget is not None or plan is not None):
        raise InputError(
            f"a run that is resumed has its plan already. Leave {option('budget')} out, or start another run."
        )
    if plan is not None and (recipe is not None or budget is not None):
        raise InputError("a plan has its recipe and its budget already. Give plan=, or recipe= and budget=.")
    if budget is not None and hasattr(recipe, "fallbacks"):
        raise InputError("recipe= is a plan, which has its budget already. Leave budget= out.")
    if plan is not None and not isinstance(getattr(plan, "recipe", None), Recipe):
        raise InputError(f"plan is a {type(plan).__name__}; give what snugfit.plan returns.")


def _recipe_of(given: Any) -> Recipe:
    if isinstance(given, Recipe):
        return given
    if isinstance(given, Mapping):
        return Recipe.from_mapping(given)
    if isinstance(given, str | Path):
        return Recipe.from_yaml(given)
    raise InputError(f"recipe is a {type(given).__name__}; give a snugfit.Recipe, its fields, a YAML file or a plan.")


def _spec(given: Any) -> str | None:
    if given is None or isinstance(given, str):
        return given
    from snugfit.runs.given import name_of

    return name_of(given)


def _new_request(
    told: Mapping[str, Any], options: Mapping[str, Any], base: Recipe | None, plan: Any, given: Any
) -> tuple[Request, Recipe]:
    missing = [name for name, key in (("MODEL", "model"), (option("data"), "data")) if told[key] is None]
    if missing:
        raise InputError(
            f"{' and '.join(missing)} must be given, for example `snugfit train torchvision:resnet18 --data digits`; only "
            f"{option('run_dir DIR', 'resume')} knows them already."
        )
    fields, settings = by_owner(options)
    if plan is not None and fields:
        raise InputError(f"{', '.join(fields)} is given beside a plan, which says it. Leave it out, or plan with it.")
    run = Run.made_by(
        (lambda: plan.recipe) if plan is not None else lambda: (base or Recipe()).replace(**fields),
        lambda: Workload.from_mapping({"batch_size": DEFAULT_BATCH_SIZE, **settings}),
    )
    check_weights_file(run.workload)
    if given is not None and given.model is not None and (told["model_args"] or run.workload.weights):
        raise InputError(
            "model_arg and weights are for a model by its name; build the model with them, or give a function that does."
        )
    request = Request(
        **{
            **told,
            "model_args": told["model_args"] or (),
            "packing": bool(told["packing"]),
            "strict": bool(told["strict"]),
            "device": told["device"] or "auto",
        },
        settings=run.workload,
        given=given,
    )
    return request, run.recipe


def _constraints(
    budget: str | int, given: Mapping[str, Any], options: Mapping[str, Any], base: Recipe | None
) -> Constraints:
    parse_bytes(budget, what="budget")
    fields = {} if base is None else base.to_mapping(defaults=False)
    return constraints_from(**given, given={**fields, **by_owner(options)[0]})


def _same_objects(stored: Request, given: Any) -> Any:
    """The Python objects of a run that goes on, which its directory cannot hold."""
    from snugfit.runs.request import is_named

    missing = [
        name
        for name in ("model", "data")
        if not is_named(getattr(stored, name)) and (given is None or getattr(given, name) is None)
    ]
    if missing:
        names = ", ".join(getattr(stored, one) for one in missing)
        raise InputError(
            f"{' and '.join(missing)} of this run came from Python ({names}). Go on from there: "
            "snugfit.train(model, data, run_dir=..., resume=True)."
        )
    return given


def _is_finished(request: Request, summary: Mapping[str, Any]) -> bool:
    """Whether a run with a result has nothing left to do, at its length and patience of now."""
    patience, best = request.settings.patience, summary.get("best")
    early = summary.get("stopped_early") and patience is not None and best and best["evaluations_since"] >= patience
    return bool(early) or summary["steps"] >= _wanted_steps(request, summary)


def _wanted_steps(request: Request, summary: Mapping[str, Any]) -> int:
    """How long the run is to be: as long as before, unless more is asked for."""
    settings = request.settings
    if settings.max_steps is not None:
        return settings.max_steps
    steps: int = settings.epochs * summary.get("steps_per_epoch", 1)
    return steps
