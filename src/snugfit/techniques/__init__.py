"""The techniques there are: one file each, and one row here. Imports no torch.

A row says what people see in `snugfit techniques`; the essay is the docstring of the file of the same name.
"""

from __future__ import annotations

import dataclasses

from snugfit.fidelity import Level


@dataclasses.dataclass(frozen=True, slots=True)
class Technique:
    """One technique, as a row of the table."""

    name: str
    """Name of its file, its test, its benchmark and its page."""
    fields: tuple[str, ...]
    """Fields of the recipe (or of the workload) that ask for it."""
    rows: tuple[int, ...]
    """Numbers in the list of all techniques of the guides."""
    level: Level
    """Fidelity where it fits the workload; its essay says when it does not."""
    summary: str
    """What it saves, in one line."""


TECHNIQUES: tuple[Technique, ...] = (
    Technique("mixed_precision", ("precision",), (1,), "rounding", "half of the activations; fast matmuls"),
    Technique("true_precision", ("precision",), (2,), "rounding", "half of everything"),
    Technique("tf32", ("precision",), (3,), "rounding", "no memory; time of fp32 matmuls on CUDA"),
    Technique("microbatch", ("microbatch_size",), (4, 5), "exact", "activations, in proportion to the microbatch"),
    Technique(
        "accumulate_dtype", ("accumulate_dtype",), (5,), "exact", "no memory; bits of gradients summed in 16 bits"
    ),
    Technique("checkpoint", ("checkpoint",), (6,), "exact", "activations inside blocks, for one more forward pass"),
    Technique("offload_activations", ("offload_activations",), (7,), "exact", "activations, for copies to host memory"),
    Technique("optimizer", ("optimizer",), (8,), "different", "optimizer state: SGD has none, Adafactor almost none"),
    Technique("muon", ("optimizer",), (8,), "different", "half of the optimizer state of every matrix"),
    Technique(
        "low_bit_optimizer",
        ("optimizer",),
        (9, 10),
        "rounding",
        "optimizer state: three quarters of AdamW's in 8 bits, seven eighths in 4",
    ),
    Technique(
        "offload_optimizer", ("offload_optimizer",), (10,), "exact", "optimizer state, for an update on the host"
    ),
    Technique("step_in_backward", ("step_in_backward",), (11,), "exact", "all gradients but one parameter's"),
    Technique("optimizer_impl", ("optimizer_impl",), (12,), "exact", "temporaries of the update; time"),
    Technique(
        "stochastic_rounding", ("stochastic_rounding",), (2,), "rounding", "no memory; updates too small for bf16"
    ),
    Technique("init", ("init",), (13,), "exact", "the second copy of the model while it loads"),
    Technique("loading", ("workers", "pin_memory", "prefetch"), (17,), "exact", "no memory; time waiting for data"),
    Technique(
        "inplace", ("inplace",), (18,), "exact", "the input of activation functions while the code holds on to it"
    ),
    Technique(
        "compile", ("compile", "compile_memory_budget"), (20,), "rounding", "intermediates between fused operators"
    ),
    Technique("attention", ("attention",), (21,), "exact", "attention scores, which grow with the sequence squared"),
    Technique("loss_impl", ("loss_impl",), (28,), "exact", "logits of a large vocabulary, three times over"),
    Technique(
        "adapter",
        ("adapter", "adapter_rank", "adapter_alpha", "adapter_dropout", "adapter_targets", "adapter_head"),
        (22, 23),
        "different",
        "gradients and optimizer state of all weights that stay frozen",
    ),
    Technique(
        "quantize", ("quantize", "double_quantize"), (24,), "different", "three quarters of the frozen weights, or half"
    ),
)
