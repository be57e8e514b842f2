"""Rules of a recipe by itself: the range of each field, and the pairs that no workload can make sense of.

Those that depend on the workload are in `fidelity.py`. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from snugfit.spellings import SWITCH_WORDS, meant, suggestion
from snugfit.workload import LOW_BIT_OPTIMIZERS

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

MOST_WORKERS = 256
"""Each is a copy of the training process; more would end the machine before they end the waiting."""
COUNTED_CHECKPOINTS = ("every", "blocks")
_ADAPTER_FIELDS = ("adapter_rank", "adapter_alpha", "adapter_dropout", "adapter_targets", "adapter_head")


def range_problems(recipe: Recipe) -> Iterator[str]:
    """Yields a sentence for each field out of its range.

    Args:
        recipe: Its fields are of the right types already.

    Yields:
        What was given and what is allowed.
    """
    if recipe.microbatch_size is not None and recipe.microbatch_size < 1:
        yield f"microbatch_size is {recipe.microbatch_size}; it must be at least 1."
    if not 0 <= recipe.workers <= MOST_WORKERS:
        yield f"workers is {recipe.workers}; it must be 0 (load in the training process) to {MOST_WORKERS} processes."
    if recipe.prefetch < 1:
        yield f"prefetch is {recipe.prefetch}; it must be at least 1."
    if recipe.compile_memory_budget is not None and not 0 <= recipe.compile_memory_budget <= 1:
        yield f"compile_memory_budget is {recipe.compile_memory_budget}; it is a share from 0 to 1."
    if recipe.adapter_rank < 1:
        yield f"adapter_rank is {recipe.adapter_rank}; it must be at least 1."
    if not 0 < recipe.adapter_alpha < float("inf"):
        yield f"adapter_alpha is {recipe.adapter_alpha}; it must be more than 0."
    if not 0 <= recipe.adapter_dropout < 1:
        yield f"adapter_dropout is {recipe.adapter_dropout}; it is a probability from 0 to below 1."
    for name in ("checkpoint", "offload_activations", "adapter_targets"):
        value = getattr(recipe, name)
        if not value or (isinstance(value, tuple) and not all(isinstance(part, str) and part for part in value)):
            yield f"{name} is {value!r}; give a word such as none or all, or names of modules separated by commas."
        elif isinstance(value, tuple) and len(value) == 1 and value[0].lower() in SWITCH_WORDS:
            yield f"{name} is {value[0]!r}, which is no name of a module; {suggestion(name, value[0], ())}"
    if isinstance(recipe.checkpoint, str) and ":" in recipe.checkpoint:
        kind, _, number = recipe.checkpoint.partition(":")
        if kind not in COUNTED_CHECKPOINTS or not number.isdecimal() or int(number) < 1:
            yield f"checkpoint is {recipe.checkpoint!r}; give every:N or blocks:K with a whole number of at least 1."
    backend = meant("compile", recipe.compile, ())
    if backend and recipe.compile not in backend:
        yield f"compile is {recipe.compile!r}, which is no backend; {suggestion('compile', recipe.compile, ())}"
    if recipe.compile in ("torchscript", "jit", "ts"):
        yield (
            "compile='torchscript' is not offered: TorchScript is deprecated in torch and saves no training memory. "
            "Use compile='inductor'."
        )


def contradictions(recipe: Recipe) -> Iterator[str]:
    """Yields a sentence for each pair of fields that no workload can make sense of.

    Args:
        recipe: Its fields are of the right types already.

    Yields:
        What contradicts what, and what to do.
    """
    if recipe.step_in_backward:
        if recipe.precision == "16-mixed":
            yield (
                "step_in_backward contradicts precision='16-mixed': the loss scale is only judged when all gradients are "
                "there. Use bf16-mixed, or leave step_in_backward out."
            )
        if recipe.accumulate_dtype == "fp32":
            yield (
                "step_in_backward contradicts accumulate_dtype='fp32': gradients are used at once and never add up. "
                "Leave one of them out."
            )
    if recipe.stochastic_rounding and recipe.precision != "bf16-true":
        yield f"stochastic_rounding needs precision='bf16-true'; precision is {recipe.precision!r}."
    if recipe.stochastic_rounding and recipe.offload_optimizer:
        yield (
            "stochastic_rounding contradicts offload_optimizer: the update on the host uses torch's kernels, which round "
            "to nearest. Leave one of them out."
        )
    if recipe.offload_optimizer and recipe.optimizer == "adafactor":
        yield "offload_optimizer takes adam, adamw or sgd; adafactor's state is so small that moving it saves nothing."
    if recipe.offload_activations == "checkpoints" and recipe.checkpoint in ("none", "selective"):
        yield (
            f"offload_activations='checkpoints' moves the inputs of checkpointed blocks, and checkpoint is "
            f"{recipe.checkpoint!r}. Set checkpoint='all' (or every:N, blocks:K, names), or offload_activations='all'."
        )
    if recipe.checkpoint == "selective" and recipe.offload_activations != "none":
        yield (
            "checkpoint='selective' contradicts offload_activations: what selective checkpointing keeps is not passed "
            "through saved-tensor hooks, so it cannot be moved. Use checkpoint='all'."
        )
    if recipe.checkpoint == "selective" and recipe.inplace:
        yield (
            "checkpoint='selective' contradicts inplace: it keeps the results of matmuls, which nothing may overwrite. "
            "Leave one of them out."
        )
    if recipe.optimizer == "adafactor" and recipe.optimizer_impl == "fused":
        yield "optimizer_impl='fused': torch has no fused kernel for adafactor. Use foreach or for-loop."
    if recipe.compile_memory_budget is not None and recipe.compile == "none":
        yield "compile_memory_budget needs compile; set compile='inductor' or leave the budget out."
    if recipe.compile != "none" and recipe.checkpoint == "selective":
        yield "checkpoint='selective' contradicts compile: use compile_memory_budget, which lets the compiler choose."
    if recipe.compile != "none" and recipe.offload_activations != "none":
        yield (
            "offload_activations contradicts compile: saved-tensor hooks that copy do not trace. Use compile_memory_budget "
            "or checkpoint with compile."
        )
    if recipe.optimizer in (*LOW_BIT_OPTIMIZERS, "muon"):
        if recipe.offload_optimizer:
            yield (
                f"offload_optimizer takes adam, adamw or sgd, and optimizer is {recipe.optimizer!r}. Leave one of them out, "
                "or take paged-adamw8bit, which moves its own state."
            )
        if recipe.optimizer_impl is not None:
            yield f"optimizer_impl chooses among torch's kernels, and {recipe.optimizer} has its own. Leave it out."
    if recipe.adapter == "none":
        given = [name for name in _ADAPTER_FIELDS if getattr(recipe, name) != recipe.__dataclass_fields__[name].default]
        if given:
            yield f"{', '.join(given)} without an adapter; set adapter='lora' (or rslora, dora), or leave that out."
        if recipe.quantize != "none":
            yield (
                f"quantize={recipe.quantize!r} without an adapter: quantised weights cannot take small updates, so they "
                "are frozen and something beside them must be trained. Set adapter='lora', or leave quantize out."
            )
    if recipe.double_quantize and recipe.quantize != "nf4":
        yield f"double_quantize needs quantize='nf4'; quantize is {recipe.quantize!r}."
