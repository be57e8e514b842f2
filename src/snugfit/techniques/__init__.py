"""The techniques there are: one file each, and one row here. Imports no torch.

A row says what people see in `snugfit techniques`; the essay is the docstring of the file of the same name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

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
    known_as: str = ""
    """What people call it or type to find it: small letters with dashes, separated by spaces."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """The words of `known_as`."""
        return tuple(self.known_as.split())


TECHNIQUES: tuple[Technique, ...] = (
    Technique(
        "mixed_precision",
        ("precision",),
        (1,),
        "rounding",
        "half of the activations; fast matmuls",
        known_as="amp autocast bf16 bfloat16 fp16 float16 half-precision gradscaler loss-scaling",
    ),
    Technique(
        "true_precision",
        ("precision",),
        (2,),
        "rounding",
        "half of everything",
        known_as="bf16 bfloat16 fp16 float16 half-precision pure-bf16",
    ),
    Technique(
        "tf32",
        ("precision",),
        (3,),
        "rounding",
        "no memory; time of fp32 matmuls on CUDA",
        known_as="tensorfloat32",
    ),
    Technique(
        "microbatch",
        ("microbatch_size",),
        (4, 5),
        "exact",
        "activations, in proportion to the microbatch",
        known_as=("grad-accum gradient-accumulation grad-accumulation accumulation accumulate micro-batch batch-size"),
    ),
    Technique(
        "accumulate_dtype",
        ("accumulate_dtype",),
        (5,),
        "exact",
        "no memory; bits of gradients summed in 16 bits",
        known_as="fp32-accumulation gradient-accumulation-dtype",
    ),
    Technique(
        "checkpoint",
        ("checkpoint",),
        (6,),
        "exact",
        "activations inside blocks, for one more forward pass",
        known_as=(
            "gradient-checkpointing activation-checkpointing checkpointing recompute rematerialization sac "
            "selective-checkpointing"
        ),
    ),
    Technique(
        "offload_activations",
        ("offload_activations",),
        (7,),
        "exact",
        "activations, for copies to host memory",
        known_as="activation-offload activation-offloading cpu-offload offload offloading save-on-cpu",
    ),
    Technique(
        "optimizer",
        ("optimizer",),
        (8,),
        "different",
        "optimizer state: SGD has none, Adafactor almost none",
        known_as="sgd adafactor adam adamw",
    ),
    Technique("muon", ("optimizer",), (8,), "different", "half of the optimizer state of every matrix"),
    Technique(
        "low_bit_optimizer",
        ("optimizer",),
        (9, 10),
        "rounding",
        "optimizer state: three quarters of AdamW's in 8 bits, seven eighths in 4",
        known_as=(
            "8bit 8-bit 8bit-adam 8bit-adamw 8-bit-adam adam8bit adamw8bit 4bit-adam adamw4bit adamwfp8 "
            "fp8-adam paged paged-adam paged-adamw8bit paged-optimizer bitsandbytes bnb torchao"
        ),
    ),
    Technique(
        "offload_optimizer",
        ("offload_optimizer",),
        (10,),
        "exact",
        "optimizer state, for an update on the host",
        known_as="cpu-offload offload offloading optimizer-offload optimizer-offloading zero-offload",
    ),
    Technique(
        "step_in_backward",
        ("step_in_backward",),
        (11,),
        "exact",
        "all gradients but one parameter's",
        known_as="fused-backward optimizer-in-backward lomo per-parameter-update",
    ),
    Technique(
        "optimizer_impl",
        ("optimizer_impl",),
        (12,),
        "exact",
        "temporaries of the update; time",
        known_as="fused fused-optimizer foreach for-loop fused-adam fused-adamw",
    ),
    Technique(
        "stochastic_rounding",
        ("stochastic_rounding",),
        (2,),
        "rounding",
        "no memory; updates too small for bf16",
        known_as="bf16-stochastic-rounding",
    ),
    Technique(
        "init",
        ("init",),
        (13,),
        "exact",
        "the second copy of the model while it loads",
        known_as="meta-device meta low-cpu-mem-usage empty-weights init-empty-weights",
    ),
    Technique(
        "loading",
        ("workers", "pin_memory", "prefetch"),
        (17,),
        "exact",
        "no memory; time waiting for data",
        known_as="dataloader data-loading num-workers prefetch-factor",
    ),
    Technique(
        "inplace",
        ("inplace",),
        (18,),
        "exact",
        "the input of activation functions while the code holds on to it",
        known_as="in-place relu-inplace",
    ),
    Technique(
        "compile",
        ("compile", "compile_memory_budget"),
        (20,),
        "rounding",
        "intermediates between fused operators",
        known_as="torch.compile torch-compile inductor dynamo",
    ),
    Technique(
        "attention",
        ("attention",),
        (21,),
        "exact",
        "attention scores, which grow with the sequence squared",
        known_as="flash-attention flash-attention-2 flash-attn flash fa2 sdpa xformers memory-efficient-attention",
    ),
    Technique(
        "loss_impl",
        ("loss_impl",),
        (28,),
        "exact",
        "logits of a large vocabulary, three times over",
        known_as=(
            "chunked-loss liger liger-kernel cut-cross-entropy cce linear-cross-entropy fused-loss cross-entropy"
        ),
    ),
    Technique(
        "adapter",
        ("adapter", "adapter_rank", "adapter_alpha", "adapter_dropout", "adapter_targets", "adapter_head"),
        (22, 23),
        "different",
        "gradients and optimizer state of all weights that stay frozen",
        known_as="lora qlora rslora dora qdora peft low-rank-adapters",
    ),
    Technique(
        "quantize",
        ("quantize", "double_quantize"),
        (24,),
        "different",
        "three quarters of the frozen weights, or half",
        known_as=("qlora qdora nf4 int8 4bit 4-bit 8bit 8-bit quantization load-in-4bit load-in-8bit bitsandbytes bnb"),
    ),
)

NOT_HERE: Mapping[str, tuple[str, str]] = {
    "fsdp": ("sharding over several cards is not there yet: snugfit trains on one card", "offload_optimizer"),
    "galore": ("projected gradients are not there", "adapter"),
    "fp8": ("matrix products in fp8 are not there", "mixed_precision"),
    "sequence-parallel": ("cutting a sequence over several cards is not there yet", "attention"),
    "pruning": ("training with fewer weights is not there", "adapter"),
}
"""What people look for and do not find: name -> why not, and the technique that comes nearest."""

SAME_AS: Mapping[str, str] = {
    **dict.fromkeys(("fsdp2", "zero", "zero-1", "zero-2", "zero-3", "deepspeed", "ddp", "sharding", "shard"), "fsdp"),
    **dict.fromkeys(("tensor-parallel", "tp", "pipeline-parallel", "pp", "multi-gpu"), "fsdp"),
    **dict.fromkeys(("q-galore", "apollo", "came", "fira"), "galore"),
    **dict.fromkeys(("float8", "fp8-training", "transformer-engine"), "fp8"),
    **dict.fromkeys(("context-parallel", "ring-attention", "sp", "cp"), "sequence-parallel"),
    **dict.fromkeys(("sparsity", "sparse"), "pruning"),
}
"""Other names of what is not here."""
