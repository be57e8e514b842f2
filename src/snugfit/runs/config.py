"""A run before it begins: what is trained, by which recipe, where it is kept, and how it is watched.

A `RunConfig` is new, or read from the directory of a run that goes on. Whatever was typed or given is checked here, without
torch; `execute.py` carries it out, in this process or in those that `launching.py` sends it to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snugfit.errors import InputError, RecipeError, option, warn
from snugfit.fields import field_infos
from snugfit.planner.constraints import Constraints, constraints_from
from snugfit.recipe import Recipe
from snugfit.run import Run, by_owner, check_weights_file
from snugfit.runs.chosen import Chosen, chosen_by, chosen_of
from snugfit.runs.processes import DEFAULT_TIMEOUT, processes_here
from snugfit.runs.request import Given, Request, free_directory, is_named, resume_command, short_name
from snugfit.runs.run_dir import DEFAULT_KEEP, check_new
from snugfit.runs.run_files import RunFiles, check_held
from snugfit.techniques import TECHNIQUES
from snugfit.training.run_results import CHECKPOINTS
from snugfit.units import format_bytes, parse_bytes
from snugfit.workload import DEFAULT_BATCH_SIZE, Workload

CHANGEABLE = ("epochs", "max_steps", "evaluate", "eval_every", "save_every", "patience", "gpus", "nodes")
"""Training settings that a resumed run may be given anew: how long, how often and by how many, not what a step does."""

FIXED = (
    "precision",
    "optimizer",
    *(field for row in TECHNIQUES if row.name in ("adapter", "quantize") for field in row.fields),
)
"""Recipe fields that a resumed run keeps, which say what is trained; the others only how the same step is held in memory."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """All that decides a run; pickled, it is the same run in another process."""

    request: Request
    """What is trained."""
    chosen: Chosen
    """The recipe, and what a plan adds to it; with a `budget` only until the run is planned."""
    run_dir: Path
    """Where it is kept."""
    resume: bool = False
    """Whether it goes on."""
    overwrite: bool = False
    """Whether it replaces the run that is there."""
    budget: str | int | None = None
    """What it is planned for."""
    constraints: Constraints | None = None
    """What that plan must keep to."""
    predict: bool = False
    """Whether its recipe is predicted, where no plan does so."""
    tune: bool = True
    """Whether the first steps may go by other recipes of its plan."""
    keep_checkpoints: int = DEFAULT_KEEP
    """Newest checkpoints that stay."""
    download: bool = False
    """Whether data and models may be fetched."""
    log_to: tuple[str, ...] = ()
    """Loggers that get the metrics too."""
    progress: bool = True
    """Whether progress is shown."""
    rdzv: str | None = None
    """HOST:PORT where machines meet."""
    rdzv_timeout: float = DEFAULT_TIMEOUT
    """Seconds that processes wait for each other at the start."""

    @classmethod
    def new(
        cls,
        told: Mapping[str, Any],
        given: Given,
        options: Mapping[str, Any],
        *,
        recipe: Any,
        plan: Any,
        limits: Mapping[str, Any],
        run_dir: str | Path | None,
        **ways: Any,
    ) -> RunConfig:
        """Checks what a new run was asked to do.

        `told`: field of the request -> what was said of it; None: nothing.
        `options`: fields of the recipe and of the workload.
        `limits`: what the plan for a budget must keep to, as given.
        `ways`: other fields of a `RunConfig`.
        """
        missing = [name for name, key in (("MODEL", "model"), (option("data"), "data")) if told[key] is None]
        if missing:
            raise InputError(
                f"{' and '.join(missing)} must be given, for example `snugfit train torchvision:resnet18 --data digits`; "
                f"only {option('run_dir DIR', 'resume')} knows them already."
            )
        fields, settings = by_owner(options)
        base = Recipe() if recipe is None or plan is not None else recipe_of(recipe)
        if plan is not None and fields:
            raise InputError(
                f"{', '.join(fields)} is given beside a plan, which says it. Leave it out, or plan with it."
            )
        run = Run.made_by(
            lambda: base.replace(**fields) if plan is None else plan.recipe,
            lambda: Workload.from_mapping({"batch_size": DEFAULT_BATCH_SIZE, **settings}),
        )
        check_weights_file(run.workload)
        if given.model is not None and (told["model_args"] or run.workload.weights):
            raise InputError(
                "model_arg and weights are for a model by its name; build the model with them, or give a function that does."
            )
        unsaid: dict[str, Any] = {"model_args": (), "packing": False, "strict": False, "device": "auto"}
        said: dict[str, Any] = {name: unsaid.get(name) if value is None else value for name, value in told.items()}
        request = Request(**said, settings=run.workload, given=given)
        constraints = None
        if ways["budget"] is not None:
            parse_bytes(ways["budget"], what="budget")
            constraints = constraints_from(**limits, given={**base.to_mapping(defaults=False), **fields})
        processes = processes_here()
        named = [short_name(request.model), request.data]
        path = processes.from_first(lambda: free_directory(*named) if run_dir is None else Path(run_dir))
        if processes.first:
            check_new(path, overwrite=ways["overwrite"])
        chosen = Chosen(recipe=run.recipe) if plan is None else chosen_by(plan, tune=ways["tune"])
        return cls(request=request, chosen=chosen, run_dir=path, constraints=constraints, **ways)

    @classmethod
    def resumed(
        cls,
        told: Mapping[str, Any],
        given: Given,
        options: Mapping[str, Any],
        *,
        recipe: Any,
        run_dir: str | Path,
        tune: bool,
        budget: str | int | None = None,
        **ways: Any,
    ) -> RunConfig:
        """Reads the run that a directory holds, and checks what was given beside; arguments as for `new`."""
        path = Path(run_dir)
        check_held(path, writes=processes_here().first)
        kept, base = RunFiles(path), None if recipe is None else recipe_of(recipe)
        request, recipe = _changed(kept.read_request(), kept.read_recipe(), told, given, options, base)
        chosen = chosen_of(recipe, kept.read_plan(), tune=tune)
        # Who types the same line again means the same run, whose plan is made.
        if budget is not None and parse_bytes(budget, what="budget") != chosen.budget_bytes:
            planned = "no budget" if chosen.budget_bytes is None else format_bytes(chosen.budget_bytes)
            raise InputError(
                f"{option('budget')} is {budget!r}; the run was planned for {planned}, and is not planned anew. "
                f"Leave {option('budget')} out, give a recipe that needs less ({option('recipe FILE')}, such as "
                f"`snugfit plan ... {option('budget')} {budget} -o FILE` writes), or start another run."
            )
        return cls(request=request, chosen=chosen, run_dir=path, resume=True, tune=tune, **ways)

    def again(self) -> RunConfig:
        """Returns the same run as its directory has it by now, to go on with it."""
        kept = RunFiles(self.run_dir)
        request = dataclasses.replace(kept.read_request(), device=self.request.device, given=self.request.given)
        chosen = chosen_of(kept.read_recipe(), kept.read_plan(), tune=self.tune)
        return dataclasses.replace(
            self, request=request, chosen=chosen, resume=True, overwrite=False, budget=None, predict=False
        )

    def result(self) -> dict[str, Any] | None:
        """Returns the document of a run that goes on and has nothing left to do; None of others."""
        summary = RunFiles(self.run_dir).read_summary() if self.resume else None
        return None if summary is None or not _is_finished(self.request.settings, summary) else summary

    def what_is_saved(self, *, may_recur: bool = False) -> str:
        """Returns sentences on what the run leaves when it is interrupted, and how to go on with it.

        `may_recur`: whether the same run may be interrupted in the same way again.
        """
        paths = sorted((self.run_dir / CHECKPOINTS).glob("step-*.ckpt"))
        saved = f"Saved: {paths[-1]}." if paths else "No checkpoint was saved yet, so the run starts over."
        if may_recur and not paths:
            return f"No checkpoint was saved yet: start again with other settings and {option('overwrite')}."
        if may_recur:
            saved = f"If it happens again, start another run with other settings ({option('overwrite')}). {saved}"
        return f"{saved} Go on with: {resume_command(self.run_dir, self.request, self.rdzv)}"


def recipe_of(given: Any) -> Recipe:
    """Returns a recipe that was given as an object, as its fields or as a file."""
    if isinstance(given, Recipe):
        return given
    if isinstance(given, Mapping):
        return Recipe.from_mapping(given)
    if isinstance(given, str | Path):
        return Recipe.from_yaml(given)
    raise InputError(f"recipe is a {type(given).__name__}; give a snugfit.Recipe, its fields, a YAML file or a plan.")


def _changed(
    stored: Request,
    recipe: Recipe,
    told: Mapping[str, Any],
    given: Given,
    options: Mapping[str, Any],
    base: Recipe | None,
) -> tuple[Request, Recipe]:
    """Compares what is given along with `resume` with the run.

    `stored`, `recipe`: the run as its directory has it.
    `told`: field of the request -> what was said of it; None: nothing.
    Returns its request with a new length, new intervals or a new device; and its recipe, changed where that was asked for,
    which is said in a warning.
    """
    fields, typed = by_owner(options)
    wanted, settings = (base or recipe).replace(**fields), stored.settings.replace(**typed)
    free = CHANGEABLE if settings.lr_schedule == "constant" else CHANGEABLE[2:]
    said = [name for name, value in told.items() if name != "device" and value is not None]
    fixed = [
        *((name, told[name], getattr(stored, name)) for name in said),
        *((name, getattr(wanted, name), getattr(recipe, name)) for name in FIXED),
        *((name, getattr(settings, name), getattr(stored.settings, name)) for name in typed if name not in free),
    ]
    problems = [f"{name} is {new!r}; the run has {old!r}." for name, new, old in fixed if new != old]
    if problems:
        lengthened = [name for name, new, old in fixed if new != old and name in CHANGEABLE]
        if lengthened:
            problems[-1] += (
                f" By the {settings.lr_schedule} schedule the learning rate of each step depends on the number of steps, so "
                "with another number it is another run."
            )
        problems[-1] += (
            " Leave that out, or start another run. What may change here: "
            f"{', '.join(free)}, device, and the recipe except precision, optimizer, adapter and quantize."
        )
        raise RecipeError(problems, subject=f"{option('resume')} goes on with the run as it was started")
    Run(wanted, settings)
    changed = [name for name in field_infos(Recipe) if getattr(wanted, name) != getattr(recipe, name)]
    if changed:
        changes = ", ".join(f"{name} {getattr(recipe, name)} -> {getattr(wanted, name)}" for name in changed)
        warn(
            f"the run goes on by another recipe ({changes}), so its weights will not be bitwise those of a run that "
            "was never stopped.",
        )
    elif settings.ranks != stored.settings.ranks:
        warn(
            f"the run goes on in {settings.ranks} process{'es' * (settings.ranks > 1)}, and had {stored.settings.ranks}: "
            "its weights will agree with those of a run that was never stopped up to rounding, not bitwise."
        )
    _check_objects(stored, given)
    device = told.get("device") or stored.device
    return dataclasses.replace(stored, settings=settings, device=device, given=given), wanted


def _check_objects(stored: Request, given: Given) -> None:
    """Raises where the run had Python objects, which its directory cannot hold, and they are not given again."""
    missing = {
        name: getattr(stored, name)
        for name in ("model", "data")
        if not is_named(getattr(stored, name)) and getattr(given, name) is None
    }
    if missing:
        raise InputError(
            f"{' and '.join(missing)} of this run came from Python ({', '.join(missing.values())}). Go on from there: "
            "snugfit.train(model, data, run_dir=..., resume=True)."
        )


def _is_finished(settings: Workload, summary: Mapping[str, Any]) -> bool:
    """Whether a run with a result has nothing left to do, at its length and patience of now."""
    best, patience = summary.get("best"), settings.patience
    early = summary.get("stopped_early") and patience is not None and best and best["evaluations_since"] >= patience
    each = summary.get("steps_per_epoch")
    wanted = settings.max_steps or (settings.epochs * each if each else summary["steps"])
    # One that is asked for less goes on, and is told so.
    return bool(early and summary["steps"] <= wanted) or summary["steps"] == wanted
