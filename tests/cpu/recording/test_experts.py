"""Mixtures of experts: found by structure, trained, predicted to the byte, and a row of their own in the anatomy."""

import json

import pytest
import torch
from text_models import MIXTURES, build
from torch import nn

import snugfit
from snugfit import Recipe
from snugfit.recording.experts import expert_modules, inside
from snugfit.simulator.estimate import estimate_named
from snugfit.simulator.request import NamedModel
from snugfit.workload import Workload

SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 128,
    "use_cache": False,
}


def mixtral():
    import transformers as t

    t.logging.set_verbosity_error()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return t.MixtralForCausalLM(t.MixtralConfig(**SHAPE, num_local_experts=4))


def qwen():
    import transformers as t

    t.logging.set_verbosity_error()
    widths = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
    return t.Qwen2MoeForCausalLM(t.Qwen2MoeConfig(**SHAPE, **widths, num_experts=4, num_experts_per_tok=2))


def tokens():
    ids = torch.randint(0, 512, (4, 64), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, 32:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


class OfOnesOwn(nn.Module):
    """Both forms of experts, beside layers that look a little like them."""

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.zeros(1, 4, 8))
        self.convolution = nn.Conv1d(4, 4, 3)
        self.shared_expert = nn.Linear(8, 8)
        self.listed = nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(8, 8) for _ in range(4))})
        self.stacked = nn.Module()
        self.stacked.num_experts = 4
        self.stacked.weight = nn.Parameter(torch.zeros(4, 8, 8))


def test_found_by_structure():
    assert expert_modules(OfOnesOwn()) == ("listed.experts", "stacked")
    assert expert_modules(nn.Linear(2, 2)) == ()
    for make in (mixtral, qwen):
        assert expert_modules(make()) == ("model.layers.0.mlp.experts", "model.layers.1.mlp.experts")
    assert inside("stacked", ["stacked"]) and inside("stacked.a", ["stacked"]) and not inside("stacked2", ["stacked"])


def test_experts_train():
    batch = tokens()
    trainer = snugfit.prepare(mixtral(), Recipe(), device="cpu", lr=3e-3)
    losses = [float(trainer.step(batch)) for _ in range(15)]
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize("build", [mixtral, qwen])
def test_predicted_peak_is_the_measured_one(build, truth, pool):
    case = truth.Case(build, tokens, None, True)
    for recipe in (Recipe(), Recipe(precision="bf16-true", checkpoint="all")):
        measured, predicted = truth.measured(case, recipe)[0], truth.predicted(case, recipe, pool)[0]
        assert measured > 2_000_000
        assert abs(predicted / measured - 1) <= 0.02


@pytest.mark.parametrize("name", MIXTURES)
def test_packed_and_adapted_ones_are_predicted(name, truth, pool):
    pytest.importorskip("peft"), pytest.importorskip("bitsandbytes")

    def batch():
        ids = torch.randint(0, 259, (4, 48), generator=torch.Generator().manual_seed(0))
        mask = torch.ones_like(ids)
        mask[0, 24:] = 0
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

    case = truth.Case(lambda: build(MIXTURES[name]), batch, None, True)
    double = {"double_quantize": True, "precision": "bf16-true", "checkpoint": "all", "adapter_targets": ("*",)}
    for more in ({}, double):
        recipe = Recipe(adapter="lora", quantize="nf4", **more)
        measured, predicted = truth.measured(case, recipe)[0], truth.predicted(case, recipe, pool)[0]
        assert abs(predicted / measured - 1) <= 0.02


# Weights under nf4 and LoRA of rank 8 beside every linear layer, in bf16. Packed: 0.5625 bytes a weight. Six layers of each,
# with the sizes of theirs:
LARGE = {
    # Mixtral 8x7B. Packed: q and o 2 * 4096^2, k and v 2 * 4096 * 1024, experts 8 * 3 * 4096 * 14336.
    # Beside them: router 8 * 4096, norms 2 * 4096; LoRA 8 * (2 * (4096 + 4096) + 2 * (4096 + 1024)).
    # Outside: embedding and head 2 * 32000 * 4096, last norm 4096. Largest stack: 8 * 2 * 14336 * 4096.
    "mixtral": (
        {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 6, "num_attention_heads": 32,
         "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2},
        6 * (2 * 4096**2 + 2 * 4096 * 1024 + 8 * 3 * 4096 * 14336),
        6 * (8 * 4096 + 2 * 4096 + 8 * (2 * (4096 + 4096) + 2 * (4096 + 1024))) + 2 * 32000 * 4096 + 4096,
        8 * 2 * 14336 * 4096,
    ),
    # Qwen3 30B-A3B. Packed: q and o 2 * 2048 * 4096, k and v 2 * 2048 * 512, experts 128 * 3 * 2048 * 768.
    # Beside: router 128 * 2048, norms 2 * 2048 and 2 * 128 for heads; LoRA 8 * (2 * (2048 + 4096) + 2 * (2048 + 512)).
    # Outside: 2 * 151936 * 2048, and 2048. Largest stack: 128 * 2 * 768 * 2048.
    "qwen3_moe": (
        {"hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 6,
         "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "num_experts": 128,
         "num_experts_per_tok": 8},
        6 * (2 * 2048 * 4096 + 2 * 2048 * 512 + 128 * 3 * 2048 * 768),
        6 * (128 * 2048 + 2 * 2048 + 2 * 128 + 8 * (2 * (2048 + 4096) + 2 * (2048 + 512))) + 2 * 151936 * 2048 + 2048,
        128 * 2 * 768 * 2048,
    ),
    # DeepSeek V3's kind in the sizes of Moonlight 16B-A3B, whose first layer is dense. Packed, each layer: q
    # 2048 * 3072, kv_a 2048 * 576, kv_b 512 * 4096, o 2048 * 2048; the dense one 3 * 2048 * 11264; 5 others: shared
    # experts 3 * 2048 * 2816, experts 64 * 3 * 2048 * 1408. Beside, each layer: norms 2 * 2048 and 512; LoRA
    # 8 * (2048 + 3072 + 2048 + 576 + 512 + 4096 + 2048 + 2048), of the dense layer 8 * 3 * (2048 + 11264), of shared
    # experts 8 * 3 * (2048 + 2816); routers 5 * 64 * 2048. Outside: 2 * 163840 * 2048, and 2048.
    "deepseek_v3": (
        {"hidden_size": 2048, "intermediate_size": 11264, "moe_intermediate_size": 1408, "num_hidden_layers": 6,
         "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 163840, "n_routed_experts": 64,
         "num_experts_per_tok": 6, "n_shared_experts": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
         "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
        6 * (2048 * 3072 + 2048 * 576 + 512 * 4096 + 2048 * 2048) + 3 * 2048 * 11264
        + 5 * (3 * 2048 * 2816 + 64 * 3 * 2048 * 1408),
        6 * (2 * 2048 + 512 + 8 * (2048 + 3072 + 2048 + 576 + 512 + 4096 + 2048 + 2048)) + 8 * 3 * (2048 + 11264)
        + 5 * 8 * 3 * (2048 + 2816) + 5 * 64 * 2048 + 2 * 163840 * 2048 + 2048,
        64 * 2 * 1408 * 2048,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", LARGE)
def test_large_ones_take_what_is_reckoned_by_hand(kind, tmp_path, pool):
    pytest.importorskip("peft"), pytest.importorskip("bitsandbytes")
    sizes, packed, others, stack = LARGE[kind]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **sizes}))
    estimate = estimate_named(
        NamedModel(spec=f"hf:{tmp_path}", task="causal-lm", seq_len=64),
        recipe=Recipe(adapter="lora", quantize="nf4", precision="bf16-true", checkpoint="all"),
        workload=Workload(optimizer="adamw", batch_size=1),
        device="h100-80gb",
        pool=pool,
    )
    weights = packed * 0.5625 + others * 2
    # More than that is the allocator's rounding, and tables of less than 8 KiB.
    assert 0 <= estimate.anatomy_bytes["weights"] - weights <= estimate.rounding_bytes + 8192
    # At the peak a stack is unpacked beside them in bf16; of 64 tokens there is little else.
    assert weights + 2 * stack < estimate.peak_allocated_bytes < weights + 2 * stack + 0.03 * weights
    assert estimate.host_bytes <= (4 + 2) * stack


def test_a_row_of_their_own_inside_the_categories():
    model = mixtral()
    expert_bytes = sum(weight.nbytes for name, weight in model.named_parameters() if ".experts." in name)
    short = {name: value[:, :4] for name, value in tokens().items()}  # few activations: the update is the peak
    estimate = snugfit.estimate(model, short, device="cpu", optimizer="adamw")
    assert sum(estimate.anatomy_bytes.values()) == estimate.peak_allocated_bytes
    assert estimate.experts_bytes["weights"] == expert_bytes
    assert estimate.experts_bytes["gradients"] == expert_bytes
    assert estimate.experts_bytes["optimizer_state"] == pytest.approx(2 * expert_bytes, rel=1e-3)
    assert all(size <= estimate.anatomy_bytes[name] for name, size in estimate.experts_bytes.items())
    assert "of experts" in estimate.card() and "weights" in estimate.card()
    assert estimate.to_mapping()["experts_bytes"] == estimate.experts_bytes
