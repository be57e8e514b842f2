"""`snugfit.prepare`: a model and a recipe become a `Trainer`, with every technique put in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from snugfit.errors import InputError, about, did_you_mean, warn
from snugfit.fidelity import Fidelity
from snugfit.phases import phase
from snugfit.recipe import Recipe
from snugfit.run import Run
from snugfit.techniques import each_builds
from snugfit.techniques.base import Setup, model_techniques, wanted_techniques
from snugfit.techniques.batches import LOSS_WEIGHTS, LossWeight, Split
from snugfit.techniques.host_pool import HostPool
from snugfit.techniques.init.apply import build, settle
from snugfit.techniques.shard import group_size
from snugfit.techniques.shard.ranks import Ranks, builds_here, check_ranks, ranks_here
from snugfit.techniques.shard.same_model import check_same, described_module, described_optimizer
from snugfit.techniques.streams import CopyStream
from snugfit.techniques.true_precision.apply import held_in
from snugfit.training.build_update import UpdateBuilder
from snugfit.training.elementwise import check_elementwise
from snugfit.training.given_model import HasRecipe, candidates_of, check_lazy, place_of, recipe_and_fallbacks
from snugfit.training.given_optimizer import GivenOptimizer, name_of
from snugfit.training.microbatch_check import MicrobatchCheck
from snugfit.training.model_call import Forward, Loss
from snugfit.training.optimizers import OPTIMIZER_TABLE, check_takes_no_closure, trained_parameters
from snugfit.training.passes import Passes
from snugfit.training.schedule import SchedulerArgument, check_schedule, scheduler_of
from snugfit.training.switch import Rebuild, remember_trainer, take_over
from snugfit.training.trainer import Trainer
from snugfit.training.tuning import Tuning
from snugfit.workload import CUSTOM_OPTIMIZER, OPTIMIZERS, Workload, algorithm_and_storage
from snugfit.workloads.sparse_weights import check_sparse, sparse_embeddings
from snugfit.workloads.traits import model_traits
from snugfit.workloads.weights import freeze_parameters

if TYPE_CHECKING:
    from snugfit.techniques.shard.reducer import Reducer

OptimizerArgument = str | Optimizer | Callable[[Any], Optimizer]


def prepare(
    model: nn.Module | Callable[[], nn.Module],
    recipe: Recipe | HasRecipe | None = None,
    *,
    fallbacks: Iterable[Recipe] | None = None,
    loss: Loss | None = None,
    optimizer: OptimizerArgument = "adamw",
    forward: Forward | None = None,
    split: Split | None = None,
    loss_weight: LossWeight = "samples",
    scheduler: SchedulerArgument | None = None,
    device: torch.device | str | None = None,
    tune: bool = False,
    **settings: Any,
) -> Trainer:
    """Puts a recipe's techniques in place and returns the trainer; the training loop stays yours.

    The model is changed in place: moved to the device, cast where the recipe says so, its blocks wrapped. Keys of its
    `state_dict` stay those of the plain model (adapters add their own; quantised layers have packed weights in place of
    `weight`), and no random number is drawn. A model that was prepared before is taken over: its blocks are unwrapped
    first, and the earlier trainer refuses to go on.

    Args:
        model: Any module, with its weights; or a function without arguments, which is called where and in the dtype that
            the recipe's `init` says.
        recipe: How the step is held in memory, or a plan, which has a `recipe` and may have `fallbacks`; None: plainly.
        fallbacks: Recipes to go on with, in this order, where memory runs out in training; None: those of the plan. After
            the last one, the microbatch is halved.
        loss: Function of (output, batch) giving a 0-dim tensor; or a loss of torch.nn, which gets (output, batch[1]); a
            module moves to the device. None where the model returns its loss.
        optimizer: adam, adamw, sgd, adafactor or muon, as torch.optim means them, an optimizer of the model's parameters,
            or a function from parameters to an optimizer. A name with low-bit state (adamw8bit) is adamw, its state held
            so by the recipe. `trainer.optimizer` is the object for learning-rate schedulers.
        forward: Function of (model, batch); None: a tensor goes in as it is, of a tuple the first, a dict as keywords.
        split: Function of (batch, size) giving microbatches; None: along dimension 0.
        loss_weight: How losses of microbatches combine: samples, sum, tokens, or a function giving a batch's weight.
        scheduler: A learning-rate scheduler of that optimizer, or a function from the optimizer to one, stepped after each
            update; None: yours to step, or none.
        device: Where to train; None: a CUDA device where there is one, otherwise where the model is.
        tune: Whether the first steps (at most 17) go by the plan's recipe and its `rivals` in turn, timed, and the others by
            the fastest; `trainer.recipe` says which. The update is of the plan's fidelity all the time.
        **settings: Fields of `Workload`: lr, weight_decay, betas, momentum, lr_schedule, warmup_steps, clip_norm, no_decay,
            batch_size, max_steps, seed, ...

    Returns:
        The trainer.

    Raises:
        RecipeError: Settings are wrong, or the recipe contradicts them; all mistakes at once.
        InputError: The recipe cannot be carried out on this model or device.
    """
    plan = recipe
    recipe, fallbacks = recipe_and_fallbacks(recipe, fallbacks)
    candidates = candidates_of(plan) if tune else []
    found = dict(getattr(plan, "traits", None) or {})  # what a plan has found out about model and loss
    settings = {**found, **{name: value for name, value in settings.items() if value is not None or name not in found}}
    if not isinstance(model, nn.Module):
        model = _built(model, recipe, device)
    _check_arguments(loss=loss, forward=forward, split=split, loss_weight=loss_weight)
    ranks = ranks_here()
    place = place_of(device, model, waits=bool(ranks) and not each_builds(recipe))
    given = GivenOptimizer(optimizer, dict(model.named_parameters())) if isinstance(optimizer, Optimizer) else None
    if isinstance(optimizer, str):
        optimizer, storage = algorithm_and_storage(optimizer)
        if storage is not None and recipe.optimizer is None:
            recipe = recipe.replace(optimizer=storage)
            fallbacks = tuple(fallback.replace(optimizer=storage) for fallback in fallbacks)
            candidates = [(one.replace(optimizer=storage), seconds) for one, seconds in candidates]
    if "gpus" not in settings and "nodes" not in settings:
        settings.update(ranks)
    workload = _workload(model_traits(model, loss, forward), optimizer, settings)
    Run(recipe, workload)
    check_ranks(workload.ranks, place)
    check_schedule(workload)
    _warn_of_idle_settings(recipe, workload, optimizer)

    check_lazy(model, recipe)
    sparse = check_sparse(model, recipe, workload, named_optimizer=isinstance(optimizer, str))
    updated_on = torch.device("cpu") if ranks and recipe.offload_parameters == "all" else place
    setup = Setup(
        recipe=recipe,
        workload=workload,
        device=place,
        pool=HostPool(place),
        copies=CopyStream(place),
        generator=torch.Generator(updated_on).manual_seed(workload.seed) if recipe.stochastic_rounding else None,
        ranks=_ranks(place, recipe, workload),
    )
    take_over(model)
    before = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    with phase("build"):
        techniques = wanted_techniques(setup)
        freeze_parameters(model, workload.freeze)
        for technique in techniques:
            with about(technique.field):
                technique.change_before_it_moves(model)
        # What is shared out arrives unit by unit, so that no GPU holds the whole model.
        whole = setup.ranks is None or (recipe.shard == "none" and recipe.tensor_parallel == 1)
        settle(model, device=place if whole else torch.device("cpu"), dtype=held_in(recipe))
        if given is not None:
            given.follow(model, before)
        if isinstance(loss, nn.Module):
            loss.to(place)
        for technique in techniques:
            with about(technique.field):
                technique.change(model)
        reducer = None if setup.ranks is None else _shared_out(model, setup, loss, given)
        named = trained_parameters(model)
        if reducer is not None:
            rows = {f"{name}.weight" for name in sparse_embeddings(model)}
            named = {name: reducer.share_of(weight, name, sparse=name in rows) for name, weight in named.items()}
        if given is not None:
            given.follow(model, before, reducer)
        elif not isinstance(optimizer, str | Optimizer) and recipe.optimizer is None:
            given = GivenOptimizer(optimizer(list(named.values())), named, by_function=True)
            if reducer is not None:  # it may have others beside the model's
                check_same(described_optimizer(given.optimizer), reducer.ranks)
                given.follow(model, {name for name, _ in model.named_parameters(remove_duplicate=False)}, reducer)
        if given is not None:
            check_takes_no_closure(given.optimizer)
            if reducer is not None and recipe.optimizer is None and any(map(reducer.is_cut, named)):
                check_elementwise(given.optimizer, None if isinstance(optimizer, str | Optimizer) else optimizer)
        builder = UpdateBuilder(model, setup, named, given, sparse, reducer)
        rebuild = Rebuild(model, builder, None if given is None else given.optimizer)
    passes = Passes(
        model,
        techniques,
        place,
        loss=loss,
        forward=forward,
        own_split=split,
        loss_weight=loss_weight,
        ranks=setup.ranks,
    )
    scaled, promised = builder.scaler is not None, _promises(plan)
    trainer = Trainer(
        model,
        recipe,
        workload,
        passes,
        rebuild,
        scheduler=scheduler_of(scheduler, rebuild.handle.optimizer),
        fallbacks=fallbacks,
        check=MicrobatchCheck(workload, passes, list(model.parameters()), scaled=scaled, promised=promised),
    )
    if len(candidates) > 1:
        trainer.tuning = Tuning(candidates)
    remember_trainer(model, trainer, rebuild)
    return trainer


def _ranks(place: torch.device, recipe: Recipe, workload: Workload) -> Ranks | None:
    if workload.ranks == 1:
        return None
    return Ranks(place, shard=group_size(recipe, workload.ranks), tensor=recipe.tensor_parallel)


def _shared_out(model: nn.Module, setup: Setup, loss: Loss | None, given: GivenOptimizer | None) -> Reducer:
    """Shares a model out among the processes, and returns what adds its gradients up."""
    from snugfit.techniques.shard.apply import spread  # loads torch's sharding, which one process never needs

    assert setup.ranks is not None
    described = {
        **{f"recipe.{name}": repr(value) for name, value in setup.recipe.to_mapping().items()},
        **{f"settings.{name}": repr(value) for name, value in setup.workload.to_mapping().items()},
        **described_module(model, "the model"),
        **(described_module(loss, "the loss") if isinstance(loss, nn.Module) else {}),
        **(described_optimizer(given.optimizer) if given is not None else {}),
    }
    check_same(described, setup.ranks)
    with about("shard"):
        return spread(model, setup, loss if isinstance(loss, nn.Module) else None)


def _built(make: Callable[[], nn.Module], recipe: Recipe, device: torch.device | str | None) -> nn.Module:
    """Builds a model as the recipe's `init` says; weights that are packed go to the device layer by layer."""
    if not callable(make):
        raise InputError(f"model is a {type(make).__name__}; give a torch.nn.Module or a function that builds one.")
    if recipe.init == "meta":
        raise InputError(
            "init='meta' gives a model no values, and prepare() knows of no file to read them from. Use init='device'."
        )
    on_host = any(technique.from_host and technique.wanted(recipe) for technique in model_techniques())
    place = torch.device("cpu") if on_host else place_of(device, nn.Module())
    with phase("build"):
        model = build(make, init=recipe.init, device=place, dtype=held_in(recipe), first=builds_here(recipe))
    if not isinstance(model, nn.Module):
        raise InputError(f"the model function returned a {type(model).__name__}; it must return a torch.nn.Module.")
    return model


def _promises(plan: object) -> bool:
    """Whether a plan has promised that microbatches change nothing; a recipe alone promises nothing."""
    promised = getattr(plan, "fidelity", None)
    return isinstance(promised, Fidelity) and "microbatch_size" not in promised.reasons


def _check_arguments(*, loss_weight: object, **functions: object) -> None:
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise InputError(f"{name} is {function!r}; give a function.")
    if not callable(loss_weight) and loss_weight not in LOSS_WEIGHTS:
        raise InputError(
            f"loss_weight is {loss_weight!r}; {did_you_mean(str(loss_weight), LOSS_WEIGHTS)} "
            "A function of the batch will do too."
        )


def _warn_of_idle_settings(recipe: Recipe, workload: Workload, optimizer: OptimizerArgument) -> None:
    """Warns of training settings that have no effect on the workload's own optimizer."""
    given = {"lr", "weight_decay", "betas", "momentum", "no_decay"} & set(workload.to_mapping(defaults=False))
    if isinstance(optimizer, Optimizer):
        idle, whose = given, f"the {type(optimizer).__name__} given as optimizer has its own and"
    elif not isinstance(optimizer, str):
        idle, whose = given if recipe.optimizer is None else set(), "the function given as optimizer"
    else:
        idle, whose = given & {"betas", "momentum"} - set(OPTIMIZER_TABLE[optimizer].settings), optimizer
    if idle:
        warn(f"{', '.join(sorted(idle))} has no effect: {whose} does not take it.")


def _workload(traits: dict[str, bool], optimizer: OptimizerArgument, settings: dict[str, Any]) -> Workload:
    name = name_of(optimizer)
    if optimizer == CUSTOM_OPTIMIZER:
        raise InputError(
            f"optimizer {optimizer!r} stands for a function; give the function itself, or one of {', '.join(OPTIMIZERS)}."
        )
    return Workload.from_mapping({**traits, **settings, "optimizer": name})
