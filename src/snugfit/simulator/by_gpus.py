"""Which cards, and how many: the estimate of a model on several numbers of GPUs, as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from snugfit.errors import InputError, RecipeError
from snugfit.recipe import Recipe
from snugfit.run import Run
from snugfit.simulator.estimate import DeviceArgument, estimate_named
from snugfit.simulator.prediction import Estimate, OnGpus
from snugfit.simulator.request import NamedModel
from snugfit.workload import Workload

if TYPE_CHECKING:
    from snugfit.workers.pool import Pool


def numbers_of_gpus(text: str) -> tuple[int, ...]:
    """Reads a list such as `1,2,4,8`."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words) or len(set(map(int, words))) < len(words):
        raise InputError(f"--gpus is {text!r}; give a number of GPUs, or several different ones such as 1,2,4,8.")
    return tuple(map(int, words))


def estimate_by_gpus(
    named: NamedModel,
    numbers: Sequence[int],
    *,
    recipe: Recipe,
    workload: Workload,
    device: DeviceArgument = None,
    whole: bool = False,
    pool: Pool | None = None,
) -> Estimate:
    """Predicts training on several numbers of GPUs of each machine; arguments as for `estimate_named`.

    Returns the estimate on the first number on which the batch can be trained; `by_gpus` has all of them.
    """
    first: Estimate | None = None
    refused: RecipeError | None = None
    found: list[OnGpus] = []
    for gpus in numbers:
        here = workload.replace(gpus=gpus)
        try:
            Run(recipe, here)
        except RecipeError as error:
            refused = refused or error
            found.append(OnGpus(gpus=gpus, nodes=here.nodes, refusal=" ".join(error.problems)))
            continue
        made = estimate_named(named, recipe=recipe, workload=here, device=device, whole=whole, pool=pool)
        first = first or made
        found.append(
            OnGpus(
                gpus=gpus,
                nodes=here.nodes,
                refusal=None,
                total_bytes=made.total_bytes,
                host_bytes=made.host_bytes,
                devices=made.devices,
            )
        )
    if first is None:
        assert refused is not None
        raise refused
    return dataclasses.replace(first, by_gpus=tuple(found))
