"""Ladders by name: the models, shapes and steps of the public guides, and of Llama's two common sizes.

A preset is data: the config of a model in transformers' own words, the task, the length of its texts, the card its numbers
are for, and rungs. Weights are random, since memory and time do not depend on them. Imports no torch.

Source: transformers' guide to training on one GPU (bert-large: 512 random sequences of 512 tokens, Trainer's defaults of
the time, eager attention, gradients clipped to 1); `rasbt/pytorch-memory-optim`, bonus_distilbert-*.py and
bonus_bigbird-*.py (IMDb, batches of 12; there on four GPUs, here on one); torchtune's memory page (Llama).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from snugfit.errors import InputError, did_you_mean
from snugfit.ladder import Ladder, Rung
from snugfit.recipe import Recipe
from snugfit.workload import Workload

RANDOM_STEPS = 8
"""Updates of a rung on random tokens where nothing is said: enough for its memory and its speed."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PresetRung:
    """One rung of a preset."""

    name: str
    """Short name, for tables and for choosing."""
    change: str
    """What it does, in a few words."""
    recipe: Mapping[str, Any]
    """Fields of the recipe that are not plain."""
    workload: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Training settings that differ from the preset's."""
    published: str = ""
    """What its source measured, with the unit of its source."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A ladder by name."""

    name: str
    """How it is asked for."""
    config: Mapping[str, Any]
    """The model, as transformers' config.json has it."""
    task: str
    """text-classification or causal-lm."""
    seq_len: int
    """Tokens of a text at most."""
    card: str
    """The card that estimates are for."""
    workload: Mapping[str, Any]
    """Training settings of all rungs."""
    rungs: tuple[PresetRung, ...]
    """At least one, the first being plain."""

    def ladder(self, settings: Mapping[str, Any], *, random_data: bool) -> Ladder:
        """Returns the rungs as complete training runs.

        Args:
            settings: Training settings that were given; they hold for all rungs.
            random_data: Whether there is no real data, so that a few updates say it all.

        Returns:
            The ladder.

        Raises:
            RecipeError: The settings are wrong, or contradict a rung.
        """
        short = {"max_steps": RANDOM_STEPS} if random_data and not {"epochs", "max_steps"} & set(settings) else {}
        rungs = tuple(
            Rung(
                name=rung.name,
                change=rung.change,
                note=f"published: {rung.published}." if rung.published else "",
                recipe=Recipe.from_mapping(rung.recipe),
                workload=Workload.from_mapping({**self.workload, **rung.workload, **short, **settings}),
            )
            for rung in self.rungs
        )
        return Ladder(rungs=rungs, first=rungs[0], left_out={})


_BERT_LARGE = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "num_labels": 2,
}
_DISTILBERT = {
    "model_type": "distilbert",
    "architectures": ["DistilBertForSequenceClassification"],
    "dim": 768,
    "n_layers": 6,
    "n_heads": 12,
    "hidden_dim": 3072,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "num_labels": 2,
}
_BIGBIRD = {
    "model_type": "big_bird",
    "architectures": ["BigBirdForSequenceClassification"],
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "vocab_size": 50358,
    "max_position_embeddings": 4096,
    "attention_type": "block_sparse",
    "block_size": 64,
    "num_random_blocks": 3,
    "num_labels": 2,
}
_LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "num_attention_heads": 32,
}
_LLAMA_1B = {
    **_LLAMA,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
_LLAMA_8B = {**_LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}

_EAGER = {"attention": "eager", "optimizer_impl": "for-loop"}
"""Attention and AdamW as transformers had them when the guide was written."""
_SMALL = {**_EAGER, "microbatch_size": 1, "checkpoint": "all", "precision": "16-mixed"}


def _without_impl(recipe: Mapping[str, Any], optimizer: str) -> dict[str, Any]:
    return {**{name: value for name, value in recipe.items() if name != "optimizer_impl"}, "optimizer": optimizer}


_BERT_RUNGS = (
    PresetRung(name="batch-4", change="plain: AdamW, batch 4", recipe=_EAGER, published="14949 MiB, 8.86 samples/s"),
    PresetRung(
        name="accumulate-1x4",
        change="microbatches of 1",
        recipe={**_EAGER, "microbatch_size": 1},
        published="8681 MiB, 7.75 samples/s",
    ),
    PresetRung(
        name="checkpoint",
        change="and every block recomputed",
        recipe={**_EAGER, "microbatch_size": 1, "checkpoint": "all"},
        published="6775 MiB, 5.99 samples/s",
    ),
    PresetRung(
        name="fp16",
        change="batch 4 under autocast to fp16",
        recipe={**_EAGER, "precision": "16-mixed"},
        published="13939 MiB, 18.64 samples/s",
    ),
    PresetRung(
        name="checkpoint-fp16",
        change="microbatches of 1, checkpoints, fp16",
        recipe=_SMALL,
        published="7275 MiB, 10.09 samples/s",
    ),
    PresetRung(
        name="adafactor",
        change="batch 4, Adafactor",
        recipe=_without_impl(_EAGER, "adafactor"),
        published="12295 MiB, 7.96 samples/s",
    ),
    PresetRung(
        name="adamw8bit",
        change="batch 4, AdamW's state in 8 bits",
        recipe=_without_impl(_EAGER, "adamw8bit"),
        published="13085 MiB, 9.15 samples/s",
    ),
    PresetRung(
        name="all-adafactor",
        change="microbatches, checkpoints, fp16, Adafactor",
        recipe=_without_impl(_SMALL, "adafactor"),
        published="4847 MiB, 9.06 samples/s",
    ),
    PresetRung(
        name="all-adamw8bit",
        change="microbatches, checkpoints, fp16, 8-bit AdamW",
        recipe=_without_impl(_SMALL, "adamw8bit"),
        published="5363 MiB, 10.35 samples/s",
    ),
)


def _imdb_rungs(microbatch: int, start: str, end: str) -> tuple[PresetRung, ...]:
    held = {"precision": "bf16-true"}
    cut = {**held, "microbatch_size": microbatch}
    return (
        PresetRung(
            name="16-mixed", change="autocast to fp16: Adam, batch 12", recipe={"precision": "16-mixed"}, published=start
        ),
        PresetRung(name="bf16-true", change="weights, gradients, Adam's state in bf16", recipe=held),
        PresetRung(
            name=f"accumulate-{microbatch}x{12 // microbatch}", change=f"microbatches of {microbatch}", recipe=cut
        ),
        PresetRung(
            name="offload-optimizer",
            change="Adam's state and update on the host",
            recipe={**cut, "offload_optimizer": True},
            published=end,
        ),
        PresetRung(
            name="checkpoint",
            change="and every block recomputed",
            recipe={**cut, "offload_optimizer": True, "checkpoint": "all"},
        ),
    )  # fmt: skip


_BF16 = {"precision": "bf16-true", "init": "device"}
"""Built in bf16 on the device: built in fp32, the model itself would be the peak under adapters."""
_HELD = {**_BF16, "checkpoint": "all"}
_LORA = {**_HELD, "adapter": "lora", "adapter_rank": 8}
_QLORA = {**_LORA, "quantize": "nf4", "init": "host"}
"""Weights are quantised on the host, layer by layer, and only the small ones travel."""
_LLAMA_RUNGS = (
    PresetRung(name="full", change="AdamW in bf16", recipe=_BF16),
    PresetRung(name="checkpoint", change="every block recomputed", recipe=_HELD),
    PresetRung(
        name="chunked-loss", change="and no logits", recipe={**_HELD, "loss_impl": "chunked"}
    ),
    PresetRung(
        name="adamw8bit",
        change="and 8-bit AdamW, stepped in backward",
        recipe={**_HELD, "loss_impl": "chunked", "optimizer": "adamw8bit", "step_in_backward": True},
    ),
    PresetRung(name="lora", change="LoRA of rank 8 beside frozen weights", recipe=_LORA),
    PresetRung(name="lora-16", change="LoRA of rank 16", recipe={**_LORA, "adapter_rank": 16}),
    PresetRung(name="qlora", change="and the frozen weights in 4 bits", recipe=_QLORA),
    PresetRung(
        name="qlora-chunked-loss",
        change="and no logits",
        recipe={**_QLORA, "loss_impl": "chunked"},
    ),
)  # fmt: skip

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="distilbert-imdb",
            config=_DISTILBERT,
            task="text-classification",
            seq_len=512,
            card="a10g-24gb",
            workload={"optimizer": "adam", "lr": 5e-5, "batch_size": 12},
            rungs=_imdb_rungs(3, "3.99 GB reserved a GPU, on four", "1.15 GB, sharded over four GPUs"),
        ),
        Preset(
            name="bigbird-imdb",
            config=_BIGBIRD,
            task="text-classification",
            seq_len=4096,
            card="a10g-24gb",
            workload={"optimizer": "adam", "lr": 5e-5, "batch_size": 12},
            rungs=_imdb_rungs(1, "", "4.03 GB, sharded over four GPUs"),
        ),
        Preset(
            name="bert-large-512",
            config=_BERT_LARGE,
            task="text-classification",
            seq_len=512,
            card="v100-16gb",
            workload={"optimizer": "adamw", "lr": 5e-5, "weight_decay": 0.0, "batch_size": 4, "clip_norm": 1.0},
            rungs=_BERT_RUNGS,
        ),
        Preset(
            name="llama-1b",
            config=_LLAMA_1B,
            task="causal-lm",
            seq_len=2048,
            card="rtx-4090",
            workload={"optimizer": "adamw", "lr": 2e-5, "batch_size": 4},
            rungs=_LLAMA_RUNGS,
        ),
        Preset(
            name="llama-8b",
            config=_LLAMA_8B,
            task="causal-lm",
            seq_len=2048,
            card="a100-80gb",
            workload={"optimizer": "adamw", "lr": 2e-5, "batch_size": 2},
            rungs=_LLAMA_RUNGS,
        ),
    )
}


def preset_named(name: str) -> Preset:
    """Returns a preset.

    Args:
        name: How it is asked for.

    Returns:
        The preset.

    Raises:
        InputError: There is none of that name.
    """
    if name not in PRESETS:
        raise InputError(f"preset {name!r} is unknown; {did_you_mean(name, PRESETS)}")
    return PRESETS[name]
