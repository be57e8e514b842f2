"""How other tools spell the values of recipe and training settings, for "did you mean" where the letters are too far apart.

Every tool has its own word for the same thing: bf16 is bf16-mixed to one and bf16-true to another, so both are named with
what they mean. Nothing is accepted under another name; it is only recognised. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from snugfit.errors import did_you_mean

_SWITCHED_ON = ("true", "yes", "on", "1")
_SWITCHED_OFF = ("false", "no", "off", "0", "none", "null")
SWITCH_WORDS = ("true", "yes", "on", "false", "no", "off")
"""Words for a switch, which no module is called; a field that takes names of modules refuses them at once."""

SPELLINGS: Mapping[str, Mapping[tuple[str, ...], tuple[str, ...]]] = {
    "precision": {
        ("bf16", "bfloat16", "brain-float"): ("bf16-mixed", "bf16-true"),
        ("16", "fp16", "float16", "f16", "half"): ("16-mixed", "16-true"),
        ("amp", "autocast", "mixed", "mixed-precision"): ("bf16-mixed", "16-mixed"),
        ("bf16-amp", "amp-bf16", "bfloat16-mixed", "mixed-bf16", "mixed-bfloat16"): ("bf16-mixed",),
        ("fp16-mixed", "fp16-amp", "amp-fp16", "float16-mixed", "mixed-fp16", "mixed-float16"): ("16-mixed",),
        ("pure-bf16", "bf16-full", "full-bf16", "bfloat16-true"): ("bf16-true",),
        ("pure-fp16", "fp16-true", "full-fp16", "float16-true"): ("16-true",),
        ("32", "float32", "f32", "full", "single", "32-true", "fp32-true", "highest"): ("fp32",),
        ("64", "fp64", "float64", "double", "64-true"): ("fp32",),
        ("tensorfloat32", "tensorfloat-32", "high"): ("tf32",),
    },
    "accumulate_dtype": {("32", "float32", "f32", "full"): ("fp32",), ("none", "default", "same"): ("as-is",)},
    "checkpoint": {
        (*_SWITCHED_ON, "full", "layers", "layer", "block", "gradient-checkpointing"): ("all",),
        _SWITCHED_OFF: ("none",),
        ("blocks",): ("blocks:K", "all"),
        ("every", "every-n"): ("every:N",),
        ("sac", "selective-checkpointing", "policy"): ("selective",),
    },
    "offload_activations": {(*_SWITCHED_ON, "cpu", "host"): ("all",), _SWITCHED_OFF: ("none",)},
    "optimizer": {
        ("8bit", "8bit-adam", "8bit-adamw", "adam8bit", "adamw-bnb-8bit", "adamw-8bits", "bnb-adamw8bit"): (
            "adamw8bit",
        ),
        ("4bit", "4bit-adam", "4bit-adamw", "adam4bit", "adamw-torch-4bit"): ("adamw4bit",),
        ("fp8", "adamfp8", "adamw-fp8", "adamw-torch-fp8"): ("adamwfp8",),
        ("paged", "paged-adam", "paged-adamw", "paged-adam8bit", "paged-adamw-8bit"): ("paged-adamw8bit",),
        ("adamw-torch", "adamw-torch-fused", "adamw-hf", "adamw-fused", "fused-adamw"): ("adamw",),
        ("momentum", "sgd-momentum", "nesterov"): ("sgd",),
    },
    "optimizer_impl": {("single-tensor", "forloop", "loop"): ("for-loop",), ("multi-tensor", "apex"): ("foreach",)},
    "init": {("cpu", "ram"): ("host",), ("cuda", "gpu"): ("device",), ("empty", "lazy", "deferred"): ("meta",)},
    "attention": {
        ("flash-attention", "flash-attention-2", "flash-attention-3", "flash-attn", "fa2", "fa3"): ("flash",),
        ("efficient", "mem-efficient", "memory-efficient", "xformers", "cudnn", "math"): ("sdpa",),
        ("manual", "naive", "vanilla"): ("eager",),
    },
    "loss_impl": {("liger", "liger-kernel", "cce", "cut-cross-entropy"): ("fused", "chunked"), ("none",): ("full",)},
    "compile": {(*_SWITCHED_ON, "torch.compile", "torch-compile", "default"): ("inductor",), _SWITCHED_OFF: ("none",)},
    "adapter": {(*_SWITCHED_ON, "qlora", "peft"): ("lora",), ("rs-lora",): ("rslora",), _SWITCHED_OFF: ("none",)},
    "quantize": {
        ("4", "4bit", "int4", "fp4", "load-in-4bit", "bnb-4bit", "qlora"): ("nf4",),
        ("8", "8bit", "load-in-8bit", "llm-int8", "bnb-8bit"): ("int8",),
        _SWITCHED_OFF: ("none",),
    },
    "lr_schedule": {("cos", "cosine-annealing"): ("cosine",), ("none", "const", "constant-with-warmup"): ("constant",)},
}
"""Field -> words that other tools use -> the values here that they may stand for, the likeliest first."""

MEANINGS: Mapping[str, Mapping[str, str]] = {
    "precision": {
        "fp32": "casts nothing: float64 stays float64",
        "tf32": "matmuls of fp32 round to 10 bits on CUDA",
        "16-mixed": "fp16 autocast with loss scaling; weights and optimizer state stay fp32",
        "bf16-mixed": "bf16 autocast; weights and optimizer state stay fp32",
        "16-true": "weights, gradients and optimizer state in fp16",
        "bf16-true": "weights, gradients and optimizer state in bf16",
    },
    "checkpoint": {"all": "every block", "blocks:K": "the first K blocks", "every:N": "every N-th block"},
}
"""Field -> value -> what it means, where a suggestion alone would not say enough."""


def meant(field: str, given: Any, allowed: Iterable[str]) -> tuple[str, ...]:
    """Returns the values that a word may stand for, other spellings and other letter cases included.

    Args:
        field: The field of the recipe or of the training settings.
        given: What was given, as text or as YAML read it (16, true).
        allowed: The values that exist.

    Returns:
        Values to suggest, the likeliest first; none when the word is not known.
    """
    word = re.sub(r"[\s_]+", "-", str(given).strip().lower())
    squeezed = word.replace("-", "")
    same = tuple(value for value in allowed if re.sub("[-_]", "", value) == squeezed)
    if same:
        return same
    for words, values in SPELLINGS.get(field, {}).items():
        if word in words or squeezed in (other.replace("-", "") for other in words):
            return values
    return ()


def suggestion(field: str, given: Any, allowed: Iterable[str]) -> str:
    """Returns the tail of a message about an unknown value: what may have been meant, then what is allowed.

    Args:
        field: The field.
        given: What was given.
        allowed: The values that exist.

    Returns:
        One or two sentences.
    """
    values = list(allowed)
    found = meant(field, given, values)
    if not found:
        return did_you_mean(str(given), values)
    meanings = MEANINGS.get(field, {})
    words = [f"{value!r} ({meanings[value]})" if value in meanings else repr(value) for value in found]
    hint = f"did you mean {' or '.join(words)}?"
    return f"{hint} Allowed: {', '.join(values)}." if values else hint
