"""Fidelity of a recipe against a workload: a literal table."""

import pytest

from snugfit import Recipe, RecipeError, Workload, fidelity
from snugfit.techniques.microbatch import splits

WORKLOAD = Workload(batch_size=16)

TABLE = [
    ({}, {}, "exact"),
    ({"microbatch_size": 4}, {}, "exact (microbatch_size not checked yet)"),
    ({"microbatch_size": 4}, {"coupled_samples": False}, "exact"),
    ({"microbatch_size": 4}, {"coupled_samples": True}, "different (microbatch_size)"),
    ({"microbatch_size": 16}, {"coupled_samples": True}, "exact"),
    ({"microbatch_size": 16}, {"dropout": True}, "exact"),
    ({"microbatch_size": 4}, {"dropout": True}, "different (microbatch_size)"),
    ({"microbatch_size": 4}, {"batch_norm": True}, "different (microbatch_size)"),
    ({"microbatch_size": 4}, {"batch_size": None, "dropout": True}, "different (microbatch_size)"),
    ({"microbatch_size": 4}, {"coupled_samples": False, "half_weights": True}, "rounding (microbatch_size)"),
    ({"microbatch_size": 16}, {"half_weights": True}, "exact"),
    (
        {"microbatch_size": 4, "precision": "bf16-true"},
        {"coupled_samples": False},
        "rounding (precision, microbatch_size)",
    ),
    (
        {"microbatch_size": 4, "precision": "bf16-true", "accumulate_dtype": "fp32"},
        {"coupled_samples": False},
        "rounding (precision)",
    ),
    (
        {"checkpoint": "all", "offload_activations": "all", "offload_optimizer": True, "inplace": True},
        {"dropout": True},
        "exact",
    ),
    ({"step_in_backward": True, "optimizer_impl": "for-loop"}, {}, "exact"),
    ({"precision": "tf32"}, {}, "rounding (precision)"),
    ({"precision": "bf16-true", "stochastic_rounding": True}, {}, "rounding (precision, stochastic_rounding)"),
    ({"compile": "aot_eager"}, {}, "exact"),
    ({"compile": "inductor"}, {}, "rounding (compile)"),
    ({"optimizer": "sgd"}, {}, "different (optimizer)"),
    ({"optimizer": "adamw"}, {}, "exact"),
    ({"optimizer": "sgd", "precision": "bf16-true"}, {}, "different (optimizer)"),
    ({"optimizer": "adamw8bit"}, {}, "rounding (optimizer)"),
    ({"optimizer": "paged-adamw8bit"}, {"optimizer": "adam"}, "different (optimizer)"),
    ({"optimizer": "muon"}, {"optimizer": "muon"}, "exact"),
    ({"loss_impl": "chunked", "attention": "sdpa"}, {}, "exact"),
    ({"adapter": "lora"}, {}, "different (adapter)"),
    ({"adapter": "dora", "quantize": "nf4", "precision": "bf16-true"}, {}, "different (adapter, quantize)"),
]


@pytest.mark.parametrize(("fields", "settings", "verdict"), TABLE)
def test_verdicts(fields, settings, verdict):
    workload = WORKLOAD.replace(**settings)
    found = fidelity(Recipe(**fields), workload)
    assert str(found) == verdict
    assert all(sentence.endswith(".") for _, sentence in found.reasons.values())


def test_against_another_workload():
    found = fidelity(Recipe(), WORKLOAD.replace(batch_size=4, optimizer="sgd", lr=0.1), WORKLOAD)
    assert found.level == "different" and list(found.reasons) == ["optimizer", "batch_size", "lr"]


@pytest.mark.parametrize(
    ("fields", "settings", "message"),
    [
        ({"microbatch_size": 17}, {}, "larger than the batch of 16"),
        ({"step_in_backward": True, "microbatch_size": 4}, {}, "contradicts accumulation"),
        ({"step_in_backward": True}, {"clip_norm": 1.0}, "global norm"),
        ({"offload_optimizer": True}, {"optimizer": "adafactor"}, "moving it saves nothing"),
        ({"optimizer_impl": "fused"}, {"optimizer": "adafactor"}, "no fused kernel"),
        ({"offload_optimizer": True}, {"optimizer": "custom"}, "needs one by name"),
        ({"offload_optimizer": True}, {"optimizer": "muon"}, "multiplies matrices"),
        ({"optimizer_impl": "for-loop"}, {"optimizer": "muon"}, "has its own"),
        ({"optimizer_impl": "fused"}, {"optimizer": "custom"}, "choose the kernels in the function"),
    ],
)
def test_contradictions(fields, settings, message):
    with pytest.raises(RecipeError, match=message):
        fidelity(Recipe(**fields), WORKLOAD.replace(**settings))


def test_several_contradictions_come_at_once():
    with pytest.raises(RecipeError) as error:
        fidelity(Recipe(step_in_backward=True, microbatch_size=4), WORKLOAD.replace(clip_norm=1.0))
    assert len(error.value.problems) == 2


def test_splits():
    assert splits(Recipe(microbatch_size=4), WORKLOAD) and splits(Recipe(microbatch_size=4), Workload())
    assert not splits(Recipe(microbatch_size=16), WORKLOAD) and not splits(Recipe(), WORKLOAD)
