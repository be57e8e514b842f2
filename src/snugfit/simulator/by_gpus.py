"""Which cards, and how many: the estimates on several numbers of GPUs, as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from snugfit.errors import InputError, RecipeError
from snugfit.simulator.prediction import Estimate, OnGpus


def numbers_of_gpus(text: str) -> tuple[int, ...]:
    """Reads a list such as `1,2,4,8`."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words) or len(set(map(int, words))) < len(words):
        raise InputError(f"--gpus is {text!r}; give a number of GPUs, or several different ones such as 1,2,4,8.")
    return tuple(map(int, words))


def estimate_by_gpus(estimate_on: Callable[[int], Estimate], numbers: Sequence[int], nodes: int = 1) -> Estimate:
    """Predicts training on several numbers of GPUs of each machine.

    `estimate_on`: makes the estimate for one of them; a `RecipeError` says why there is none.

    Returns the estimate on the first number on which the batch can be trained; `by_gpus` has all of them.
    """
    first: Estimate | None = None
    refused: RecipeError | None = None
    found: list[OnGpus] = []
    for gpus in numbers:
        try:
            made = estimate_on(gpus)
        except RecipeError as error:
            refused = refused or error
            found.append(OnGpus(gpus=gpus, nodes=nodes, refusal=" ".join(error.problems)))
            continue
        first = first or made
        needs = {"total_bytes": made.total_bytes, "host_bytes": made.host_bytes}
        found.append(OnGpus(gpus=gpus, nodes=nodes, refusal=None, devices=made.devices, **needs))
    if first is None:
        assert refused is not None
        raise refused
    return dataclasses.replace(first, by_gpus=tuple(found))
