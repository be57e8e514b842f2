"""Small models of transformers that read bytes, as configs in a folder."""

from __future__ import annotations

import json
from pathlib import Path

BERT = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 259, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 259,
    "max_position_embeddings": 64,
}  # fmt: skip
OPT = {
    "model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 259, "max_position_embeddings": 64, "word_embed_proj_dim": 32,
}  # fmt: skip
_MIXTURE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 259, "max_position_embeddings": 64,
}  # fmt: skip
MIXTRAL = {**_MIXTURE, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4}
QWEN3_MOE = {
    **_MIXTURE, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 16, "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 64,
}  # fmt: skip
DEEPSEEK = {
    **_MIXTURE, "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_key_value_heads": 4,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 1, "n_group": 2,
    "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16, "v_head_dim": 16,
}  # fmt: skip
GPT_OSS = {
    **_MIXTURE, "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "head_dim": 16, "num_local_experts": 4,
    "num_experts_per_tok": 2, "layer_types": ["full_attention"] * 2,
}  # fmt: skip
MIXTURES = {"mixtral": MIXTRAL, "qwen3": QWEN3_MOE, "deepseek": DEEPSEEK, "gpt-oss": GPT_OSS}
"""Mixtures of experts, in the layouts that transformers has: a shared expert and a dense layer, turned matrices, biases."""


def config_file(folder: Path, config: dict, name: str = "model", **changes) -> Path:
    """Writes a config.json into a folder of its own and returns its path."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    file = folder / name / "config.json"
    file.write_text(json.dumps({**config, **changes}))
    return file


def build(config: dict, *, classes: int | None = None, seed: int = 0, **changes):
    """Builds the model with the same weights every time."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    given = {**config, "use_cache": False, **changes}
    if classes is not None:
        given["num_labels"] = classes
    made = AutoConfig.for_model(**given)
    kind = AutoModelForCausalLM if classes is None else AutoModelForSequenceClassification
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind.from_config(made)
