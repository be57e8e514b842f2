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
