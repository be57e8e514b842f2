"""`snugfit.train`: a whole run from Python, and what `snugfit train` does. Imports no torch until everything was checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from snugfit.errors import InputError, note, option
from snugfit.fields import check_keywords
from snugfit.recipe import Recipe
from snugfit.runs.config import RunConfig
from snugfit.runs.joining import joined
from snugfit.runs.launching import check_machines, launched
from snugfit.runs.loggers import loggers_named
from snugfit.runs.processes import DEFAULT_TIMEOUT
from snugfit.runs.request import Given, model_arguments, name_of
from snugfit.runs.result import TrainResult
from snugfit.runs.run_dir import DEFAULT_KEEP
from snugfit.runs.standing import agreed_options, rank_here
from snugfit.workload import Workload


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
    log_to: str | Iterable[str] | None = None,
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
        log_to: Loggers that get the metrics too, and predicted and measured memory: tensorboard, trackio, wandb or mlflow,
            several with commas.
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
    rank = rank_here()
    with joined(rank, device=device, rdzv=rdzv, rdzv_timeout=rdzv_timeout):
        if rank is not None:
            options |= agreed_options(rank, options)
        told = {
            "model": name_of(model),
            "data": name_of(data),
            "task": task,
            "model_args": None if model_arg is None else model_arguments(model_arg),
            "image_size": image_size,
            "seq_len": seq_len,
            "samples": samples,
            "strict": strict,
            "packing": packing,
            "text_column": text_column,
            "label_column": label_column,
            "prompt_column": prompt_column,
            "device": device,
        }
        own_model, own_data = (None if isinstance(one, str) else one for one in (model, data))
        given = Given(
            model=own_model,
            data=own_data,
            loss=loss,
            loss_weight=loss_weight,
            forward=forward,
            split=split,
            collate=collate,
        )
        limits = {"allow": allow, "pin": pin, "forbid": forbid, "host_budget": host_budget}
        ways: dict[str, Any] = {
            "tune": tune,
            "keep_checkpoints": keep_checkpoints,
            "download": download,
            "log_to": loggers_named(log_to),
            "progress": progress,
            "rdzv": rdzv,
            "rdzv_timeout": rdzv_timeout,
        }
        check_keywords(train, options, Recipe, Workload)
        _check_numbers({"image_size": image_size, "seq_len": seq_len, "samples": samples}, keep_checkpoints)
        if plan is not None and (recipe is not None or budget is not None):
            raise InputError("a plan has its recipe and its budget already. Give plan=, or recipe= and budget=.")
        if hasattr(recipe, "fallbacks"):
            recipe, plan = None, recipe
        _check_choices(plan, budget, limits, resume=resume)
        if not resume:
            ways |= {"budget": budget, "predict": predict, "overwrite": overwrite}
            config = RunConfig.new(
                told, given, options, recipe=recipe, plan=plan, limits=limits, run_dir=run_dir, **ways
            )
        elif overwrite:
            raise InputError(
                f"{option('resume')} goes on with a run, {option('overwrite')} replaces it; give one of them."
            )
        elif run_dir is None:
            raise InputError(f"{option('resume')} needs {option('run_dir DIR')}, the run to go on with.")
        else:
            config = RunConfig.resumed(told, given, options, recipe=recipe, run_dir=run_dir, budget=budget, **ways)
        result = config.result()
        if result is not None:
            note(f"the run in {config.run_dir} is finished; this is its result.")
            return TrainResult.of(result, first=rank is None or rank.number == 0)
        if rank is None and config.request.settings.ranks > 1:
            check_machines(config, run_dir)
            return launched(config)
        from snugfit.runs.execute import execute

        return execute(config)


def _check_numbers(counts: Mapping[str, int | None], keep: int) -> None:
    if keep < 2:
        raise InputError(f"{option('keep_checkpoints')} is {keep}; give at least 2: a damaged one needs a predecessor.")
    for name, count in counts.items():
        if count is not None and count < 1:
            raise InputError(f"{option(name)} is {count}; it must be at least 1.")


def _check_choices(plan: Any, budget: Any, limits: Mapping[str, Any], *, resume: bool) -> None:
    """Raises for options of a plan where none is asked for, and for a plan where the run has a recipe already."""
    given = [option(name) for name, value in limits.items() if value]
    if budget is None and given:
        raise InputError(f"{', '.join(given)} belongs to a plan; give {option('budget SIZE')} too.")
    if resume and plan is not None:
        raise InputError("a run that is resumed has its plan already. Leave plan= out, or start another run.")
    if budget is not None and plan is not None:
        raise InputError("recipe= is a plan, which has its budget already. Leave budget= out.")
    if plan is not None and not isinstance(getattr(plan, "recipe", None), Recipe):
        raise InputError(f"plan is a {type(plan).__name__}; give what snugfit.plan returns.")
