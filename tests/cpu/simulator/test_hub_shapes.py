"""Models of transformers with parts of two kinds, and scaled ones: predicted from a config, measured in real steps."""

import json

import pytest
import torch

import snugfit
from snugfit.measure.allocator_events import AllocatorEvents
from snugfit.simulator.estimate import estimate_named
from snugfit.simulator.request import NamedModel
from snugfit.workloads.model_batches import batch_for, task_of
from snugfit.workloads.models import build_model

pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
WORDS = {"vocab_size": 300, "max_position_embeddings": 64}
VISION = {**SIZES, "image_size": 32, "patch_size": 8}
LLAMA = {"model_type": "llama", **SIZES, **WORDS, "num_key_value_heads": 2}

CONFIGS = {
    "siglip": {"model_type": "siglip", "text_config": {**SIZES, **WORDS}, "vision_config": VISION},
    "siglip for classes": {
        "model_type": "siglip",
        "architectures": ["SiglipForImageClassification"],
        "vision_config": VISION,
        "text_config": {**SIZES, **WORDS},
    },
    "llava": {
        "model_type": "llava",
        "architectures": ["LlavaForConditionalGeneration"],
        "text_config": LLAMA,
        "vision_config": {"model_type": "clip_vision_model", **VISION, "projection_dim": 32},
        "image_token_index": 299,
        "vision_feature_layer": -1,
    },
    "llava with siglip": {
        "model_type": "llava",
        "architectures": ["LlavaForConditionalGeneration"],
        "text_config": LLAMA,
        "vision_config": {"model_type": "siglip_vision_model", **VISION},
        "image_token_index": 299,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    },
    "granite": {
        **LLAMA,
        "model_type": "granite",
        "embedding_multiplier": 12.0,
        "logits_scaling": 8.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.125,
    },
    "granite with experts": {
        **LLAMA,
        "model_type": "granitemoe",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
}
TASKS = {
    "siglip": "contrastive",
    "siglip for classes": "image-classification",
    "llava": "image-text-to-text",
    "llava with siglip": "image-text-to-text",
    "granite": "causal-lm",
    "granite with experts": "causal-lm",
}
SHAPES = {"image-text-to-text": {"seq_len": 32}, "causal-lm": {"seq_len": 32}}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_takes_what_is_estimated_from_the_config(pool, tmp_path, name):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIGS[name]))
    spec = f"hf:{file}"
    task = task_of(spec, None)
    assert task == TASKS[name]

    def real():
        torch.manual_seed(0)
        events = AllocatorEvents()
        events.start()
        model = build_model(spec, task=task)
        made = batch_for(model, spec, task, batch_size=4, device="cpu", **SHAPES.get(task, {}))
        trainer = snugfit.prepare(model, device="cpu", **made.task.arguments())
        losses = [float(trainer.step(made.batch)) for _ in range(2)]
        events.stop()
        return events.peak_bytes, losses

    real()  # what is made once in a process
    measured, losses = real()
    assert losses[1] < losses[0]
    found = estimate_named(
        NamedModel(spec=spec, task=task, **SHAPES.get(task, {})),
        workload=snugfit.Workload(batch_size=4),
        device="cpu",
        pool=pool,
    )
    assert found.peak_allocated_bytes == pytest.approx(measured, rel=0.01)
