"""The ladder: the guides' study of one training run in ever less memory, each rung keeping what those before it brought.

The order is the one in which the public guides take the steps, so that their numbers can be laid beside ours. The rungs
stand in `ladder.yaml`, with their sources: a name, and what changes in the recipe and in the training settings. Imports no
torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from snugfit.device_kinds import CPU
from snugfit.errors import InputError, did_you_mean
from snugfit.fidelity import Fidelity, fidelity
from snugfit.recipe import Recipe
from snugfit.workload import Workload
from snugfit.yaml_files import read_table

DEFAULT_ADAM_LR = 1e-3
"""Adam's learning rate when none is given: torch.optim's default, for training from scratch."""

DEFAULT_SGD_LR = 0.1
"""SGD's learning rate when none is given: the customary start for training from scratch without momentum."""

_WORDS = ("change", "note", "otherwise")


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

    def fidelity_against(self, first: Rung, **traits: bool) -> Fidelity:
        """Returns how close this rung stays to the first; `traits` are known facts such as `batch_norm`."""
        return fidelity(self.recipe, self.workload.replace(**traits), first.workload.replace(**traits))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """All rungs, and those that have no place in this ladder."""

    rungs: tuple[Rung, ...]
    """At least one, in order."""

    first: Rung
    """Plain training, which every fidelity is against, whether it is among the rungs or not."""

    left_out: dict[str, str]
    """Name -> why it is not there."""

    def choose(self, names: Iterable[str]) -> Ladder:
        """Returns the ladder with some of its rungs, in its order; `InputError` for names that are not in it."""
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
    """Returns the ladder for a run on `cpu` or `cuda`.

    The batch shrinks to a quarter, and that to microbatches of a quarter, as in the guides (64, 16, 4).

    `settings`: training settings that all rungs share; `lr` and `lr_schedule` are Adam's. Optimizer, batch size and
    SGD's schedule are set here.
    `bf16`: whether the device computes in bf16 by itself; without, the mixed rung takes fp16 with a scaled loss.
    """
    quarter, micro = max(1, batch_size // 4), max(1, batch_size // 16)
    rate = DEFAULT_SGD_LR if sgd_lr is None else sgd_lr
    numbers = {"batch": batch_size, "quarter": quarter, "micro": micro, "pieces": -(-quarter // micro), "sgd_lr": rate}
    # The linear scaling rule (Goyal et al. 2017, arXiv:1706.02677): as many steps more, so much shorter each.
    numbers["small_lr"] = rate * micro / quarter
    places = {"bf16": bf16, "fp16": not bf16, "card": device != CPU}
    places |= {"quartered": quarter < batch_size, "cut": micro < quarter}
    lr = DEFAULT_ADAM_LR if settings.lr is None else settings.lr
    recipe, workload = Recipe(), settings.replace(optimizer="adam", lr=lr, batch_size=batch_size)
    rungs, left_out = [], {}
    for name, row in read_table("ladder.yaml").items():
        name, words = name.format(**numbers), {key: row.get(key, "").format(**numbers) for key in _WORDS}
        if places.get(row.get("when"), True):
            recipe = recipe.replace(**_filled(row.get("recipe", {}), numbers))
            workload = workload.replace(**_filled(row.get("workload", {}), numbers))
            rungs.append(Rung(name=name, change=words["change"], note=words["note"], recipe=recipe, workload=workload))
        elif words["otherwise"]:
            left_out[name] = words["otherwise"]
    return Ladder(rungs=tuple(rungs), first=rungs[0], left_out=left_out)


def _filled(changes: Mapping[str, Any], numbers: Mapping[str, float]) -> dict[str, Any]:
    return {field: numbers.get(value, value) for field, value in changes.items()}
