"""The ladder: the guides' study of one training run in ever less memory, each rung keeping what those before it brought.

The order is the one in which the public guides take the steps, so that their numbers can be laid beside ours. The rungs are
data: a name, what changes, a recipe and the training settings. Imports no torch.

Source: S. Raschka, "Optimizing Memory Usage for Training LLMs and Vision Transformers in PyTorch" (the first seven rungs);
torchtune's memory page (checkpointing, the step in backward, offload).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from snugfit.device_kinds import CPU
from snugfit.errors import InputError, did_you_mean
from snugfit.fidelity import Fidelity, fidelity
from snugfit.recipe import Recipe
from snugfit.techniques.mixed_precision import Precision
from snugfit.workload import Workload

DEFAULT_ADAM_LR = 1e-3
"""Adam's learning rate when none is given: torch.optim's default, for training from scratch."""

DEFAULT_SGD_LR = 0.1
"""SGD's learning rate when none is given: the customary start for training from scratch without momentum."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One rung: a complete training run."""

    name: str
    """Short name, for tables and for choosing."""

    change: str
    """What is new against the rung before, in a few words."""

    note: str = ""
    """Why it is done this way, where that needs saying."""

    recipe: Recipe
    """How the step is held in memory."""

    workload: Workload
    """What is learned and how."""

    def fidelity_against(self, first: Rung, *, batch_norm: bool = False, dropout: bool = False) -> Fidelity:
        """Returns how close this rung stays to the first.

        Args:
            first: The first rung of the ladder.
            batch_norm: Whether the model has batch norm.
            dropout: Whether the model has dropout.

        Returns:
            The level and the fields that lower it.
        """
        traits = {"batch_norm": batch_norm, "dropout": dropout}
        return fidelity(self.recipe, self.workload.replace(**traits), first.workload.replace(**traits))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """All rungs, and the ones that have no place in this ladder."""

    rungs: tuple[Rung, ...]
    """At least one, in order."""

    first: Rung
    """Plain training, which every fidelity is against, whether it is among the rungs or not."""

    left_out: dict[str, str]
    """Name -> why it is not there."""

    def choose(self, names: Iterable[str]) -> Ladder:
        """Returns the ladder with some of its rungs, each as it was; the order stays.

        Args:
            names: Names of rungs.

        Returns:
            The smaller ladder.

        Raises:
            InputError: A name is unknown or its rung is left out here, or there is none.
        """
        wanted = list(dict.fromkeys(names))
        known = [rung.name for rung in self.rungs]
        for name in wanted:
            if name in self.left_out:
                raise InputError(f"rung {name!r} has no place in this ladder: {self.left_out[name]}")
            if name not in known:
                raise InputError(f"rung {name!r} is unknown; {did_you_mean(name, known)}")
        if not wanted:
            raise InputError(f"no rung is chosen. Give some of: {', '.join(known)}.")
        chosen = tuple(rung for rung in self.rungs if rung.name in wanted)
        return Ladder(rungs=chosen, first=self.first, left_out={})


def build_ladder(
    settings: Workload, *, device: str, bf16: bool = True, sgd_lr: float | None = None, batch_size: int = 64
) -> Ladder:
    """Returns the ladder for a run.

    The batch shrinks to a quarter, and that to microbatches of a quarter, as in the guides (64, 16, 4).

    Args:
        settings: Training settings that all rungs share; `lr` and `lr_schedule` are Adam's. Optimizer, batch size and
            SGD's schedule are set here.
        device: `cpu` or `cuda`.
        bf16: Whether the device computes in bf16 by itself; without, the mixed rung takes fp16 with a scaled loss.
        sgd_lr: SGD's learning rate; None: `DEFAULT_SGD_LR`.
        batch_size: Samples of an update on the first rung.

    Returns:
        The rungs, and what is left out.

    Raises:
        RecipeError: The settings are wrong, or contradict a rung.
    """
    quarter, micro = max(1, batch_size // 4), max(1, batch_size // 16)
    mixed: Precision = "bf16-mixed" if bf16 else "16-mixed"
    lr = DEFAULT_ADAM_LR if settings.lr is None else settings.lr
    plain = settings.replace(optimizer="adam", lr=lr, batch_size=batch_size)
    small = plain.replace(batch_size=quarter)
    sgd_rate = DEFAULT_SGD_LR if sgd_lr is None else sgd_lr
    sgd = small.replace(optimizer="sgd", lr=sgd_rate, lr_schedule="cosine", momentum=0.0)
    held = Recipe(precision="bf16-true")
    accumulated = held if micro == quarter else held.replace(microbatch_size=micro)
    rounded = accumulated.replace(stochastic_rounding=True)
    recomputed = rounded.replace(checkpoint="all")
    # The linear scaling rule (Goyal et al. 2017, arXiv:1706.02677): as many steps more, so much shorter each.
    smallest = sgd.replace(batch_size=micro, lr=sgd_rate * micro / quarter)
    stepped = recomputed.replace(microbatch_size=None, step_in_backward=True, init="device")

    mixed_note = (
        "bf16 has the range of fp32, so the loss needs no scaling; CPUs and cards since Ampere compute in it."
        if bf16
        else "this device does not compute in bf16 by itself, so fp16 with a scaled loss is taken."
    )
    accumulate = f"accumulate-{micro}x{-(-quarter // micro)}"
    rungs = [
        Rung(name="fp32", change=f"plain PyTorch: Adam, batch {batch_size}", recipe=Recipe(), workload=plain),
        Rung(
            name=mixed,
            change="autocast to bf16" if bf16 else "autocast to fp16, scaled loss",
            note=mixed_note,
            recipe=Recipe(precision=mixed),
            workload=plain,
        ),
        Rung(name="bf16-true", change="weights, gradients, Adam's state in bf16 too", recipe=held, workload=plain),
        Rung(name=f"batch-{quarter}", change=f"batch {quarter}", recipe=held, workload=small),
        Rung(
            name=accumulate,
            change=f"the same batch in microbatches of {micro}",
            recipe=accumulated,
            workload=small,
        ),
        Rung(
            name="sgd-cosine",
            change="SGD with cosine schedule, stochastic rounding",
            note="SGD's momentum is 0, as in the guides, so it has no state; rounding to the nearest bf16 would lose its "
            "small updates.",
            recipe=rounded,
            workload=sgd,
        ),
        Rung(name="checkpoint", change="every block recomputed in backward", recipe=recomputed, workload=sgd),
        Rung(
            name="step-in-backward",
            change=f"batch {micro}, each gradient used at once",
            note=f"accumulation ends here: a gradient that is used at once cannot add up, so the batch is {micro}, and "
            "the learning rate is scaled with it. Building in fp32 would be the peak by now, so it is built in bf16.",
            recipe=stepped,
            workload=smallest,
        ),
    ]
    left_out = {}
    if device != CPU:
        rungs.append(
            Rung(
                name="offload",
                change="inputs of the blocks wait in host memory",
                recipe=stepped.replace(offload_activations="checkpoints"),
                workload=smallest,
            )
        )
    else:
        left_out["offload"] = "a CPU has no second memory to move activations to."
    if quarter == batch_size:
        left_out[f"batch-{quarter}"] = f"a batch of {batch_size} cannot be quartered."
    if micro == quarter:
        left_out[accumulate] = f"a batch of {quarter} cannot be cut further."
    kept = tuple(rung for rung in rungs if rung.name not in left_out)
    return Ladder(rungs=kept, first=kept[0], left_out=left_out)
