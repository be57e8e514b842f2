"""What an export to DeepSpeed was asked for, the stage of ZeRO that follows from it, and why it may not be had."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from snugfit.fields import as_typed, field_infos
from snugfit.interop.deepspeed_schedule import schedule_problem
from snugfit.recipe import Recipe
from snugfit.run import Run
from snugfit.techniques.shard import numbered
from snugfit.workload import Workload
from snugfit.yaml_files import read_table

STAGES = {"none": 0, "gradients": 2, "full": 3}
"""`shard` -> the stage of ZeRO."""
TYPES = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "adafactor": "Adafactor"}
"""Optimizers of torch.optim that DeepSpeed builds -> their names there."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What an export was asked for beside the recipe."""

    stage: int | None = None
    """Stage of ZeRO, 0 to 3; None: that of the recipe's `shard`, or the least that the rest needs."""
    offload: str | None = None
    """cpu or nvme: where the optimizer's state goes, and at stage 3 the weights; None: as the recipe says, to the cpu."""
    nvme_path: str | None = None
    """Folder on the drive."""
    by_hand: tuple[str, ...] = ()
    """Some of `BY_HAND`."""
    largest_tensor: int | None = None
    """Elements of the model's largest weight; None: unknown."""


def algorithm(recipe: Recipe, workload: Workload) -> str:
    """The algorithm of the update, however its state is held."""
    from snugfit.workload import STORED_OPTIMIZERS

    name = recipe.optimizer or workload.optimizer
    return STORED_OPTIMIZERS.get(name, name)


def offloaded_to(recipe: Recipe, wanted: Wanted) -> str | None:
    """Where optimizer state goes off the card; None: it stays."""
    by_recipe = recipe.offload_optimizer or recipe.offload_parameters == "all"
    return wanted.offload or ("cpu" if by_recipe else None)


def _least_stage(recipe: Recipe, wanted: Wanted) -> tuple[int, str]:
    """The lowest ZeRO stage that the other fields need, and the field that needs it."""
    if wanted.offload == "nvme":
        return 3, "--offload nvme"
    if recipe.offload_parameters == "all":
        return 3, "offload_parameters=all"
    if numbered(recipe.shard, "hybrid"):
        return 3, f"shard={recipe.shard}"
    if offloaded_to(recipe, wanted):
        return 1, "optimizer state on the host"
    if recipe.true_precision is not None:
        return 1, f"precision={recipe.precision} with all of its state in 16 bits"
    return 0, ""


def stage_of(recipe: Recipe, workload: Workload, wanted: Wanted) -> tuple[int, str | None]:
    """The ZeRO stage, and what has to be said about it."""
    least, why = _least_stage(recipe, wanted)
    own = STAGES.get(recipe.shard, 3)
    if wanted.stage is not None:
        return wanted.stage, None
    if own >= least:
        return own, None
    return least, f"ZeRO {least} in place of {own} (shard={recipe.shard}): {why} needs it. The update is the same."


def misfits(run: Run, wanted: Wanted) -> Iterator[str]:
    """Contradictions between what was asked for, apart from single fields."""
    recipe, workload = run.recipe, run.workload
    least, why = _least_stage(recipe, wanted)
    if wanted.stage is not None and wanted.stage < least:
        yield f"--stage {wanted.stage}: {why} needs ZeRO {least} or more."
    if wanted.nvme_path is not None and wanted.offload != "nvme":
        yield "--nvme-path is for --offload nvme."
    size, ranks = workload.batch_size, workload.ranks
    if size is None:
        yield "the batch has no size. Give --batch-size."
    elif size % ranks:
        below, above = size - size % ranks, size + ranks - size % ranks
        near = f"{below} or {above}" if below else f"{above}"
        yield f"a batch of {size} has no equal shares for {ranks} GPUs, and DeepSpeed has no others. Give {near}."
    stage = stage_of(recipe, workload, wanted)[0]
    if "optimizer" in wanted.by_hand:
        return
    name = algorithm(recipe, workload)
    if name not in TYPES:
        yield (
            f"optimizer={name}: DeepSpeed has none with that update. Give --by-hand optimizer and hand yours to "
            "deepspeed.initialize, or export with another --optimizer."
        )
    elif name == "adafactor" and stage:
        yield (
            f"optimizer=adafactor looks at whole matrices, and ZeRO {stage} lays weights out in one row. Give --stage 0 "
            "and a precision of 32 bits or autocast, or another optimizer."
        )
    if "lr_schedule" not in wanted.by_hand:
        problem = schedule_problem(workload)
        if problem is not None:
            yield problem


def refused(run: Run) -> Iterator[str]:
    """A sentence for each field that would make the update another one."""
    for name, sentence in read_table("interop/deepspeed.yaml")["refused"].items():
        value = getattr(run.recipe, name, None)
        info = field_infos(Recipe).get(name)
        if info is not None and value != info.default:
            yield sentence.format(value=as_typed(value))
