"""Out of memory on a real device: a share of the card that is too small for the first step, and faults at any allocation."""

from __future__ import annotations

import gc
import random
import warnings

import pytest
import torch
from failing_allocations import failing
from recovery_runs import difference, trained
from small_models import cross_entropy, make_batches, make_model

import snugfit
from snugfit import Recipe, SnugfitWarning

SMALLER = 1 if torch.cuda.is_available() else 8
"""The pretend card computes on the processor, so samples and limits are an eighth there."""
SAMPLES = 16384 // SMALLER

KERNELS = {
    "fused": {},
    "foreach": {"optimizer_impl": "foreach"},
    "for_loop": {"optimizer_impl": "for-loop"},
    "offload_optimizer": {"offload_optimizer": True},
}


@pytest.mark.parametrize("fields", KERNELS.values(), ids=KERNELS)
def test_the_first_step_does_not_fit(fields):
    plain, _ = trained("cuda", samples=SAMPLES, **fields)
    total_bytes = torch.cuda.get_device_properties(0).total_memory

    def limit(step):
        if step == 0:  # a third of what the activations of the whole batch need
            gc.collect()
            torch.cuda.empty_cache()
            wanted_bytes = torch.cuda.memory_reserved() + 400 * 2**20 // SMALLER
            torch.cuda.set_per_process_memory_fraction(wanted_bytes / total_bytes)

    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            weights, trainer = trained("cuda", samples=SAMPLES, before_step=limit, **fields)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert any("step 1 ran out of memory" in str(one.message) for one in said)
    assert trainer.recipe.microbatch_size < SAMPLES and trainer.steps_done == 2
    assert difference(weights, plain) < 1e-9


@pytest.mark.parametrize("fields", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_a_fault_leaves_no_trace(phase, fields):
    """Versions of tensors are counted by other kernels here than on CPU."""

    def run(fault=None):
        model = make_model("mlp")
        trainer = snugfit.prepare(model, Recipe(**fields), loss=cross_entropy, device="cuda", lr=0.01)
        count = 0
        for step, batch in enumerate(make_batches("mlp", 8, 4)):
            with failing(phase, (fault,) if step == 1 and fault is not None else ()) as mode:
                trainer.step(batch)
            count = mode.count if step == 1 else count
        trainer.finish()
        return [weight.detach().cpu() for weight in model.parameters()], count

    plain, count = run()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnugfitWarning)
        for fault in random.Random(0).sample(range(count), min(count, 10)):
            assert difference(run(fault)[0], plain) < 1e-9


def test_masks_are_those_of_one_step():
    """The device's generator goes back too."""

    def run(fault=None):
        torch.manual_seed(3)
        model = make_model("vit")
        trainer = snugfit.prepare(
            model, fallbacks=[Recipe(checkpoint="all")], loss=cross_entropy, device="cuda", lr=0.01
        )
        torch.manual_seed(4)
        for step, batch in enumerate(make_batches("vit", 6, 3)):
            with failing("backward", (fault,) if step == 1 and fault is not None else ()):
                trainer.step(batch)
        trainer.finish()
        return [weight.detach().cpu() for weight in model.parameters()]

    plain = run()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnugfitWarning)
        assert difference(run(9), plain) < 1e-9


def test_evaluation_goes_on_in_smaller_pieces():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(2)))
    trainer = snugfit.prepare(model, loss=cross_entropy, device="cuda")
    samples = 2**17 // SMALLER
    batch = torch.randn(samples, 512)
    model.eval()
    want = trainer.evaluate_batch(batch).cpu()
    torch.cuda.empty_cache()
    wanted_bytes = torch.cuda.memory_reserved() + 700 * 2**20 // SMALLER  # the input, the output and a little more
    torch.cuda.set_per_process_memory_fraction(wanted_bytes / torch.cuda.get_device_properties(0).total_memory)
    try:
        with pytest.warns(SnugfitWarning, match=f"evaluation ran out of memory with {samples} samples"):
            got = trainer.evaluate_batch(batch).cpu()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(got, want)
