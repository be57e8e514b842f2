"""The recipe: how a training step is held in memory. Every knob, frozen, checked, to and from YAML.

A recipe never says what is learned (that is the `Workload`), so two recipes can always be compared on one workload.
Field docstrings are the help texts of the command line. Imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from snugfit.errors import InputError, RecipeError
from snugfit.fields import field_infos, from_mapping, to_mapping, type_problems, whatever_was_meant
from snugfit.recipe_rules import contradictions, range_problems

Precision = Literal["fp32", "tf32", "16-mixed", "bf16-mixed", "16-true", "bf16-true"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How a training step is held in memory; the default is plain PyTorch.

    Raises:
        RecipeError: Listing every field that is wrong and every pair that contradicts itself.
    """

    precision: Precision = "fp32"
    """Number format: fp32 casts nothing (float64 stays float64); tf32 lets matmuls of fp32 round to 10 bits on CUDA;
    16-mixed and bf16-mixed compute under autocast (16-mixed scales the loss); 16-true and bf16-true hold weights,
    gradients and state in 16 bits."""

    microbatch_size: int | None = None
    """Samples in one forward and backward pass; gradients add up to those of the whole batch. None: the whole batch."""

    accumulate_dtype: Literal["as-is", "fp32"] = "as-is"
    """Where gradients of microbatches add up: in the dtype of the weights, or in fp32 (for 16-bit weights)."""

    checkpoint: str | tuple[str, ...] = "none"
    """Activation checkpointing: none, all (every block), selective (keep matmuls and attention, recompute the rest),
    every:N (every N-th block), blocks:K (exactly the first K blocks), or names of modules, separated by commas."""

    offload_activations: str | tuple[str, ...] = "none"
    """Saved activations that wait for backward in host memory: none, all, checkpoints (only the inputs of checkpointed
    blocks), or names of modules, separated by commas."""

    optimizer: (
        Literal["adam", "adamw", "sgd", "adafactor", "muon", "adamw8bit", "adamw4bit", "adamwfp8", "paged-adamw8bit"]
        | None
    ) = None
    """Replaces the workload's optimizer: by one that holds the same state in fewer bits (adamw8bit, adamw4bit, adamwfp8,
    paged-adamw8bit, for adamw), or by another algorithm (labelled different). None: keep it."""

    optimizer_impl: Literal["foreach", "fused", "for-loop"] | None = None
    """Kernels of the optimizer's update: one for all tensors (fused), one an operation (foreach), one a tensor and
    operation (for-loop). None: fused where torch has it for this optimizer, else torch's default."""

    offload_optimizer: bool = False
    """Optimizer state lives in host memory and the update runs there (adam, adamw, sgd)."""

    step_in_backward: bool = False
    """Each parameter is updated as soon as its gradient is complete, and the gradient freed at once."""

    stochastic_rounding: bool = False
    """Updates of bf16 weights are rounded up or down at random, so that small ones are not lost (bf16-true only)."""

    init: Literal["host", "device", "meta"] = "host"
    """Where the model is built: on the host and then moved; on the device in the final dtype; or without memory (meta),
    the weights then being read from a file straight into place."""

    inplace: bool = False
    """Activation functions overwrite their input where autograd allows it."""

    workers: int = 0
    """Processes that load data beside training; 0 loads in the training process."""

    pin_memory: bool = False
    """Batches come in page-locked host memory, so that copies to a CUDA device overlap with compute."""

    prefetch: int = 2
    """Batches each worker keeps ready."""

    attention: Literal["auto", "eager", "sdpa", "flash"] = "auto"
    """Attention kernels: auto leaves the model's choice; eager holds the full score matrix; sdpa takes torch's fused
    kernels; flash allows only the flash kernel and stops where it cannot run."""

    loss_impl: Literal["full", "chunked", "fused"] = "full"
    """Loss over a vocabulary: full holds all logits; chunked computes head and loss by pieces, mostly of the vocabulary,
    and holds the logits of one piece; fused takes one kernel of liger-kernel (CUDA)."""

    compile: str = "none"
    """torch.compile backend, such as inductor or aot_eager; none runs eagerly."""

    compile_memory_budget: float | None = None
    """Share of activation memory the compiler may keep, 0 to 1; the rest is recomputed. None: keep what it likes."""

    adapter: Literal["none", "lora", "rslora", "dora"] = "none"
    """Low-rank adapters beside frozen linear layers, trained in their place: lora, rslora (scaled for high ranks), dora
    (magnitude and direction apart). The model's output head is trained as it is for a new task."""

    adapter_rank: int = 8
    """Rank of the adapters."""

    adapter_alpha: float = 16.0
    """Adapters are scaled by alpha / rank (rslora: by alpha / root of the rank)."""

    adapter_dropout: float = 0.0
    """Dropout on the input of the adapters, 0 to below 1."""

    adapter_targets: str | tuple[str, ...] = "all-linear"
    """Linear layers that get an adapter: all-linear, or name patterns separated by commas, such as *.q_proj,*.v_proj."""

    adapter_head: bool = False
    """A language model's output head gets an adapter too."""

    quantize: Literal["none", "nf4", "int8"] = "none"
    """Frozen weights under adapters in 4 bits (nf4) or 8 bits (int8); they cannot be trained themselves."""

    double_quantize: bool = False
    """The scales of nf4 are quantised once more."""

    def __post_init__(self) -> None:
        for name in ("checkpoint", "offload_activations", "adapter_targets"):
            object.__setattr__(self, name, _names(getattr(self, name), name))
        wrong = type_problems(self)
        problems = [*wrong.values(), *range_problems(self), *whatever_was_meant(self, wrong, contradictions)]
        if problems:
            raise RecipeError(problems)

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Recipe:
        """Builds a recipe from plain data.

        Args:
            given: Field name -> value; missing fields take their default.

        Returns:
            The recipe.

        Raises:
            RecipeError: Listing every mistake.
        """
        return from_mapping(cls, given, subject="recipe")

    @classmethod
    def from_yaml(cls, path: str | Path, **changes: Any) -> Recipe:
        """Reads a recipe from a YAML file.

        Args:
            path: The file.
            **changes: Field name -> value that goes before the file's.

        Returns:
            The recipe.

        Raises:
            InputError: The file is missing, unreadable or no mapping.
            RecipeError: Listing every mistake in its fields.
        """
        from snugfit.yaml_files import read_yaml

        given = read_yaml(path, "recipe file", example="checkpoint: all")
        fields = {str(name).replace("-", "_"): value for name, value in given.items()}
        return from_mapping(cls, {**fields, **changes}, subject=f"recipe {str(path)!r}")

    def to_mapping(self, *, defaults: bool = True) -> dict[str, Any]:
        """Returns the recipe as plain data.

        Args:
            defaults: Whether fields at their default are kept.

        Returns:
            Field name -> plain value.
        """
        return to_mapping(self, defaults=defaults)

    def to_yaml(self, path: str | Path | None = None) -> str:
        """Returns the recipe as YAML, and writes it where a path is given.

        Args:
            path: File to write, or None.

        Returns:
            The YAML text, all fields in the order of the class.

        Raises:
            InputError: The file cannot be written.
        """
        import yaml

        text: str = yaml.safe_dump(self.to_mapping(), sort_keys=False)
        if path is not None:
            try:
                Path(path).write_text(text, encoding="utf-8")
            except OSError as error:
                raise InputError(f"recipe file {str(path)!r} cannot be written: {error.strerror}.") from error
        return text

    def replace(self, **changes: Any) -> Recipe:
        """Returns a copy with some fields changed.

        Args:
            **changes: Field name -> new value.

        Returns:
            The new recipe, checked.
        """
        return Recipe.from_mapping({**{name: getattr(self, name) for name in field_infos(Recipe)}, **changes})

    @property
    def true_precision(self) -> Literal["16", "bf16"] | None:
        """The 16-bit format weights are held in, or None when their dtype is left alone."""
        return {"16-true": "16", "bf16-true": "bf16"}.get(self.precision)  # type: ignore[return-value]

    @property
    def checkpoint_count(self) -> tuple[str, int] | None:
        """`("every", N)` or `("blocks", K)` when checkpoint counts blocks, else None."""
        if isinstance(self.checkpoint, str) and ":" in self.checkpoint:
            kind, _, number = self.checkpoint.partition(":")
            return kind, int(number)
        return None


_KEYWORDS = {
    "checkpoint": ("none", "all", "selective"),
    "offload_activations": ("none", "all", "checkpoints"),
    "adapter_targets": ("all-linear",),
}
"""Fields that take names, and their words that are no names."""


def _names(value: Any, field: str) -> Any:
    """Names separated by commas become a tuple; keywords and anything odd stay for the checks."""
    if not isinstance(value, str):
        return value
    value = value.strip()
    keywords = _KEYWORDS[field]
    if not value or value in keywords or (field == "checkpoint" and ":" in value):
        return value
    return tuple(name.strip() for name in value.split(",") if name.strip())
