"""Recipes and settings that between them give every field that an export knows another value."""

from collections.abc import Mapping

from snugfit.recipe import Recipe
from snugfit.run import Run, by_owner
from snugfit.workload import Workload

CASES: dict[str, dict[str, object]] = {
    "plain": {},
    "mixed, checkpointed": {"precision": "bf16-mixed", "checkpoint": "all"},
    "16 bits": {"precision": "bf16-true", "checkpoint": "blocks:2", "stochastic_rounding": True},
    "fp16": {"precision": "16-mixed", "checkpoint": "selective"},
    "tf32, compiled": {"precision": "tf32", "attention": "sdpa", "compile": "inductor", "compile_memory_budget": 0.5},
    "qlora": {
        "precision": "bf16-mixed", "adapter": "lora", "quantize": "nf4", "double_quantize": True, "adapter_dropout": 0.05,
        "adapter_targets": "*.q_proj,*.v_proj",
    },
    "dora": {"precision": "bf16-true", "adapter": "dora", "adapter_rank": 16, "adapter_alpha": 32.0, "adapter_head": True},
    "rslora on int8": {"precision": "bf16-mixed", "adapter": "rslora", "quantize": "int8"},
    "8-bit state": {"optimizer": "adamw8bit", "loss_impl": "fused", "weights": "DEFAULT"},
    "paged": {"optimizer": "paged-adamw8bit", "loss_impl": "chunked", "precision": "bf16-true"},
    "4-bit state": {"optimizer": "adamw4bit", "no_decay": True},
    "paged state": {"optimizer": "paged-adamw", "ema_decay": 0.999},
    "sgd": {"optimizer": "sgd", "step_in_backward": True, "inplace": True, "init": "device"},
    "adafactor": {"optimizer": "adafactor", "optimizer_impl": "foreach"},
    "shared out": {"shard": "full", "gpus": 4, "precision": "bf16-mixed", "shard_unit": "size:1000"},
    "gradients shared out": {"shard": "gradients", "gpus": 4, "reduce_gradients": "batch", "microbatch_size": 2},
    "in groups": {"shard": "hybrid:2", "gpus": 4},
    "weights on the host": {"shard": "full", "offload_parameters": "all", "gpus": 2, "reduce_dtype": "fp32"},
    "replicated": {"gpus": 2, "microbatch_size": 3},
    "offloaded": {"offload_activations": "checkpoints", "checkpoint": "all"},
    "state on the host": {
        "offload_optimizer": True, "microbatch_size": 4, "accumulate_dtype": "fp32", "precision": "bf16-true",
    },
    "loading": {"workers": 2, "pin_memory": True, "prefetch": 4, "freeze": "embed*"},
    "scheduled": {
        "lr_schedule": "cosine", "warmup_steps": 10, "max_steps": 100, "clip_norm": 1.0, "eval_every": 10, "save_every": 20,
        "seed": 3, "epochs": 2, "betas": (0.9, 0.95), "weight_decay": 0.1, "patience": 3, "keep_best": "loss",
    },
    "flash": {"attention": "flash", "precision": "bf16-true", "evaluate": False},
    "eager": {"attention": "eager", "coupled_samples": False},
    "muon": {"optimizer": "muon"},
    "layers cut": {"tensor_parallel": 2, "gpus": 2},
    "momentum": {"optimizer": "sgd", "momentum": 0.9},
}  # fmt: skip


def case(name: str) -> Run:
    """Returns a case as a run on batches of 16."""
    return run_of(CASES[name])


def run_of(fields: Mapping[str, object]) -> Run:
    recipe, workload = by_owner(fields)
    return Run(Recipe(**recipe), Workload(**{"batch_size": 16, "lr": 1e-4, **workload}))
