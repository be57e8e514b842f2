"""What only a real device shows: streams, page-locked copies, updates masked on the device, and no waiting in the step."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model

import snugfit
from snugfit import Recipe, SnugfitWarning, TrainingError

RECIPES = {
    "plain": {},
    "microbatch": {"microbatch_size": 4},
    "checkpoint": {"checkpoint": "all"},
    "selective": {"checkpoint": "selective"},
    "offload_activations": {"offload_activations": "all"},
    "offload_checkpoints": {"checkpoint": "all", "offload_activations": "checkpoints"},
    "offload_optimizer": {"offload_optimizer": True},
    "step_in_backward": {"step_in_backward": True},
    "both": {"step_in_backward": True, "offload_optimizer": True},
    "foreach": {"optimizer_impl": "foreach"},
    "for_loop": {"optimizer_impl": "for-loop"},
}


def _train(recipe: Recipe, batches, device: str):
    model = make_model("mlp")
    trainer = snugfit.prepare(model, recipe, loss=cross_entropy, device=device, batch_size=10)
    for batch in batches:
        trainer.step(batch)
    trainer.finish()
    return model, trainer


@pytest.mark.parametrize("fields", RECIPES.values(), ids=RECIPES)
def test_cuda_trains_as_cpu_does(fields):
    batches = make_batches("mlp", 10, 3)
    expected, _ = _train(Recipe(), batches, "cpu")
    trained, _ = _train(Recipe(**fields), batches, "cuda")
    for got, want in zip(trained.parameters(), expected.parameters(), strict=True):
        assert (got.cpu() - want).abs().max() <= 1e-9 * want.abs().max()


def test_a_step_does_not_wait_for_the_device():
    """torch raises for every call that makes the host wait, except the copies this test makes itself."""
    model = make_model("mlp", torch.float32)
    trainer = snugfit.prepare(model, Recipe(precision="16-mixed"), loss=cross_entropy, device="cuda", clip_norm=1.0)
    batches = [tuple(part.cuda() for part in batch) for batch in make_batches("mlp", 10, 6, torch.float32)]
    trainer.step(batches[0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches[1:]:
            trainer.step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    trainer.finish()


@pytest.mark.parametrize("precision", ["fp32", "bf16-true"])
def test_a_bad_step_is_masked_and_reported_late(precision):
    warnings.simplefilter("ignore", SnugfitWarning)
    model = make_model("mlp", torch.float32)
    trainer = snugfit.prepare(model, Recipe(precision=precision), loss=cross_entropy, device="cuda")
    good, bad = make_batches("mlp", 10, 2, torch.float32)
    trainer.step(good)
    trainer.finish()
    before = copy.deepcopy(model.state_dict())
    bad[0][0, 0] = float("nan")
    with pytest.raises(TrainingError, match="step 2"):
        trainer.step(bad)
        trainer.finish()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_offloaded_activations_leave_the_device():
    def peak(**fields):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        model = make_model("vit")
        trainer = snugfit.prepare(model, Recipe(**fields), loss=cross_entropy, device="cuda")
        for batch in make_batches("vit", 512, 2):
            trainer.step(batch)
        trainer.finish()
        return torch.cuda.max_memory_allocated() - start

    peak()  # the matrix library takes its workspaces, and keeps them
    assert peak(offload_activations="all") < 0.7 * peak()
