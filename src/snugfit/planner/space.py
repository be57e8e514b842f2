"""The space of recipes: what may be chosen for each dimension, for this workload and under these constraints.

A dimension is a few changes of recipe fields that belong together. Nothing is judged here twice: whether a recipe makes
sense is asked of `Recipe`, whether it fits the workload and what fidelity it costs of `fidelity`, and whether the model
can carry it out of the simulation. Imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from snugfit.errors import RecipeError
from snugfit.planner.constraints import Constraints
from snugfit.recipe import Recipe
from snugfit.workload import LOW_BIT_OPTIMIZERS, Workload

Changes = Mapping[str, Any]

PLAIN = "plain"
"""Name of the choice that changes nothing."""

SWITCHES: Mapping[str, Changes] = {
    "attention": {"attention": "sdpa"},
    "inplace": {"inplace": True},
}
"""Taken for good where the simulation shows less memory and no more time."""

POINTS: Mapping[str, Changes] = {
    PLAIN: {},
    "checkpoint": {"checkpoint": "all"},
    "selective": {"checkpoint": "selective"},
    "offload": {"offload_activations": "all"},
    "checkpoint+offload": {"checkpoint": "all", "offload_activations": "checkpoints"},
}
"""What can be done to all blocks alike; choices of some blocks lie between them."""

NEVER = {
    "compile": "a compiled step is predicted as if it ran eagerly, which would be a guess; measure it, then pin it",
    "compile_memory_budget": "it belongs to compile",
    "workers": "loading of data is not simulated; pin it to what your data needs",
    "pin_memory": "loading of data is not simulated; pin it where copies to the card show in a profile",
    "prefetch": "loading of data is not simulated",
    "adapter_rank": "it belongs to adapter",
    "adapter_alpha": "it belongs to adapter",
    "adapter_dropout": "it belongs to adapter",
    "adapter_targets": "it belongs to adapter",
    "adapter_head": "it belongs to adapter",
    "double_quantize": "it belongs to quantize",
}
"""Fields that are only used when they are pinned, and why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Space:
    """All recipes that may be chosen."""

    constraints: Constraints
    """What they must keep to."""
    workload: Workload
    """What is learned, with the traits of the model."""
    on_cpu: bool
    """Whether training runs on a CPU, where host and device are the same memory."""
    capability: tuple[int, int]
    """Compute capability of the card."""
    base: Recipe
    """Plain training with the pins, and with the switches that were taken."""
    built: bool = False
    """Whether the model stands already."""

    @property
    def batch(self) -> int | None:
        """Samples of an update; None where nobody knows."""
        return self.workload.batch_size

    def recipe(self, *changes: Changes) -> Recipe | str:
        """Returns the recipe with some fields changed.

        Args:
            *changes: Field name -> value; later ones go before earlier ones.

        Returns:
            The recipe, or the sentence why it is not allowed.
        """
        given = self.base.to_mapping()
        for change in changes:
            given.update(change)
        if self.built and given["init"] != self.base.init:
            return "the model is built already; to choose where, give its name, or a function that builds it."
        if self.on_cpu and self._moves_to_host(given):
            return "on a cpu the host is the same memory, so moving things there saves nothing."
        try:
            made = Recipe.from_mapping(given)
            if self.constraints.is_free("accumulate_dtype"):
                in_fp32 = self.splits(made) and made.true_precision is not None
                made = made.replace(accumulate_dtype="fp32" if in_fp32 else "as-is")
        except RecipeError as error:
            return error.problems[0]
        return self.constraints.refusal(made, self.workload) or made

    def _moves_to_host(self, given: Changes) -> bool:
        return any(
            given[name] not in ("none", False) and name not in self.constraints.pins
            for name in ("offload_activations", "offload_optimizer")
        )

    def splits(self, recipe: Recipe) -> bool:
        """Returns whether a recipe cuts the batch."""
        size = recipe.microbatch_size
        return size is not None and (self.batch is None or size < self.batch)

    def allowed(self, *changes: Changes) -> list[Recipe]:
        """Returns the recipe with some fields changed, in a list that is empty where it is not allowed."""
        made = self.recipe(*changes)
        return [] if isinstance(made, str) else [made]

    def sizes(self) -> list[int]:
        """Returns the sizes of microbatch, largest first: halves and thirds of the batch that are allowed."""
        pinned = self.constraints.pins.get("microbatch_size")
        if self.batch is None:
            return [pinned] if pinned is not None else []
        if "microbatch_size" in self.constraints.pins:
            return [pinned or self.batch]
        counts = sorted({n for power in range(self.batch.bit_length() + 1) for n in (2**power, 3 * 2**power)})
        found = {-(-self.batch // n) for n in counts if n <= self.batch} | {1}
        return [n for n in sorted(found, reverse=True) if n == self.batch or self.allowed(self.size_change(n))]

    def size_change(self, size: int) -> Changes:
        """Returns the change that sets a size of microbatch."""
        if "microbatch_size" in self.constraints.pins:
            return {}
        return {"microbatch_size": None if size == self.batch else size}

    def updates(self) -> Iterator[tuple[str, Changes]]:
        """Yields the ways of updating, plain first."""
        yield PLAIN, {}
        places: list[tuple[str, Changes]] = [
            ("offload_optimizer", {"offload_optimizer": True}),
            ("step_in_backward", {"step_in_backward": True}),
            ("offload_optimizer+step_in_backward", {"offload_optimizer": True, "step_in_backward": True}),
        ]
        yield from places
        if "rounding" in self.constraints.allow:
            for name, algorithm in LOW_BIT_OPTIMIZERS.items():
                if algorithm == self.workload.optimizer:
                    yield name, {"optimizer": name}
        if "different" in self.constraints.allow:
            for name in ("sgd", "adafactor"):
                if name != self.workload.optimizer:
                    yield name, {"optimizer": name}
                    yield f"{name}+step_in_backward", {"optimizer": name, "step_in_backward": True}

    def variants(self) -> Iterator[tuple[str, Changes]]:
        """Yields what changes the passes themselves, plain first: number format, loss, adapters."""
        yield PLAIN, {}
        yield "loss_impl=chunked", {"loss_impl": "chunked"}
        if "rounding" in self.constraints.allow:
            if self.on_cpu or self.capability >= (8, 0):
                if not self.on_cpu:
                    yield "precision=tf32", {"precision": "tf32"}
                yield "precision=bf16-mixed", {"precision": "bf16-mixed"}
                # Plain rounding loses small updates of 16-bit weights, so they are never held without.
                yield "precision=bf16-true", {"precision": "bf16-true", "stochastic_rounding": True}
            else:
                yield "precision=16-mixed", {"precision": "16-mixed"}
        if "different" in self.constraints.allow:
            yield "adapter=lora", {"adapter": "lora"}
            yield "adapter=lora, quantize=nf4", {"adapter": "lora", "quantize": "nf4"}
