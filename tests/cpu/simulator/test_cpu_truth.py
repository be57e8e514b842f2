"""A CPU run is predicted to the byte or nearly so: a few rows of `benchmarks/cpu_truth.py`, one for each cause."""

import pytest


@pytest.mark.parametrize(
    ("model", "recipe"),
    [
        ("vit", "fp32 adamw"),  # contiguous copies inside layer norm
        ("vit", "bf16-true"),  # float32 sums of bf16 products
        ("vit", "checkpoint all"),  # random states that checkpoints keep
        ("vit", "offload activations"),  # the host pool, and attention's backward
        ("bert", "bf16-mixed"),
        ("bert", "offload checkpoints"),
        ("bert", "microbatch"),
        ("resnet18", "fp32 adamw"),  # blocked copies of convolutions
        ("resnet18", "offload optimizer"),
    ],
)
def test_predicted_peak_is_the_measured_one(truth, pool, model, recipe):
    row = truth.compare(model, recipe, pool)
    assert row.measured_bytes > 1_000_000
    assert abs(row.ratio - 1) <= truth.TOLERANCE, row
    assert row.predicted_host_bytes == row.measured_host_bytes, row


def test_every_technique_of_the_recipe_is_compared(truth):
    models = {model for model, _ in truth.combinations()}
    assert len(list(truth.combinations())) >= 30 and len(models) == 4
