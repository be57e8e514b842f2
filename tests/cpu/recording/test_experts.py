"""Mixtures of experts: found by structure, trained, predicted to the byte, and a row of their own in the anatomy."""

import pytest
import torch
from torch import nn

import snugfit
from snugfit import Recipe
from snugfit.recording.experts import expert_modules, inside

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
    for build in (mixtral, qwen):
        assert expert_modules(build()) == ("model.layers.0.mlp.experts", "model.layers.1.mlp.experts")
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
