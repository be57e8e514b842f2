"""Every technique's predicted effect has the right sign, and the anatomy moves where its essay says.

On a simulated CPU, where tensors count to the byte, so that what must stay the same is compared with ==.
"""

import pytest
import torch
from small_models import MLP, ViT, cross_entropy

import snugfit
from snugfit import Recipe

IMAGES = ((256, 3, 8, 8), torch.float32), ((256,), torch.int64)
FEW = ((4, 12), torch.float32), ((4,), torch.int64)


@pytest.fixture(scope="module")
def deep(pool):
    """A transformer on many images: activations are most of it."""
    return lambda recipe=None, **more: predicted(ViT, IMAGES, recipe, pool, **more)


@pytest.fixture(scope="module")
def wide(pool):
    """Wide layers on few samples: weights, gradients and optimizer state are most of it."""
    return lambda recipe=None, **more: predicted(lambda: MLP(width=256), FEW, recipe, pool, **more)


def predicted(model, batch, recipe, pool, *, device="cpu", **more):
    found = snugfit.estimate(model, batch, loss=cross_entropy, recipe=recipe, device=device, pool=pool, **more)
    assert sum(found.anatomy_bytes.values()) == found.peak_allocated_bytes
    assert found.anatomy_bytes["other"] <= 0.01 * found.peak_allocated_bytes
    return found


@pytest.fixture(scope="module")
def plain_deep(deep):
    return deep()


@pytest.fixture(scope="module")
def plain_wide(wide):
    return wide()


def same(one, other, *categories):
    assert [one.anatomy_bytes[name] for name in categories] == [other.anatomy_bytes[name] for name in categories]


@pytest.mark.parametrize("checkpoint", ["all", "every:2", "selective", "blocks:2"])
def test_checkpointing_moves_activations_only(deep, plain_deep, checkpoint):
    found = deep(Recipe(checkpoint=checkpoint))
    assert found.anatomy_bytes["activations"] < 0.95 * plain_deep.anatomy_bytes["activations"]
    same(found, plain_deep, "weights", "optimizer_state", "inputs")
    assert found.flops >= plain_deep.flops and found.host_bytes == plain_deep.host_bytes


def test_microbatches_shrink_activations_with_the_batch(deep, plain_deep):
    found = deep(Recipe(microbatch_size=64))
    share = found.anatomy_bytes["activations"] / plain_deep.anatomy_bytes["activations"]
    assert 0.2 < share < 0.3
    same(found, plain_deep, "weights", "optimizer_state", "inputs")
    assert found.flops == plain_deep.flops


@pytest.mark.parametrize("device", ["cpu", "a100-80gb"])
def test_sgd_has_no_optimizer_state(wide, device):
    plain_wide, found = wide(device=device), wide(optimizer="sgd", device=device)
    flag = 0 if device == "cpu" else 512  # of a bad step, which masks the update there
    assert found.anatomy_bytes["optimizer_state"] == flag < plain_wide.anatomy_bytes["optimizer_state"] / 4
    same(found, plain_wide, "weights", "inputs")
    momentum = wide(optimizer="sgd", momentum=0.9, device=device)
    assert momentum.anatomy_bytes["optimizer_state"] >= found.anatomy_bytes["weights"]


def test_adam_keeps_two_numbers_a_weight(plain_wide):
    state, weights = (plain_wide.anatomy_bytes[name] for name in ("optimizer_state", "weights"))
    assert 2 * weights <= state < 2.01 * weights


def test_step_in_backward_frees_gradients(wide, plain_wide):
    found = wide(Recipe(step_in_backward=True))
    assert found.anatomy_bytes["gradients"] < 0.5 * plain_wide.anatomy_bytes["gradients"]
    same(found, plain_wide, "weights", "inputs")
    assert found.total_bytes < plain_wide.total_bytes


def test_offloaded_optimizer_state_is_on_the_host(wide):
    plain, found = (wide(recipe, device="a100-80gb") for recipe in (None, Recipe(offload_optimizer=True)))
    assert found.anatomy_bytes["optimizer_state"] == 0
    assert found.host_bytes > 0.99 * plain.anatomy_bytes["optimizer_state"]
    assert found.total_bytes < plain.total_bytes
    same(found, plain, "weights", "inputs")


def test_offloaded_activations_are_on_the_host(deep, plain_deep):
    found = deep(Recipe(offload_activations="all"))
    assert found.anatomy_bytes["activations"] < 0.5 * plain_deep.anatomy_bytes["activations"]
    assert found.host_bytes > 0.5 * plain_deep.anatomy_bytes["activations"]
    same(found, plain_deep, "weights", "optimizer_state")


def test_bf16_halves_everything(deep, wide, plain_deep, plain_wide):
    found = wide(Recipe(precision="bf16-true"))
    assert 2 * found.anatomy_bytes["weights"] == plain_wide.anatomy_bytes["weights"]
    assert 0.49 < found.anatomy_bytes["gradients"] / plain_wide.anatomy_bytes["gradients"] < 0.51
    assert found.anatomy_bytes["optimizer_state"] < 0.51 * plain_wide.anatomy_bytes["optimizer_state"]
    half = deep(Recipe(precision="bf16-true"))
    assert 0.45 < half.anatomy_bytes["activations"] / plain_deep.anatomy_bytes["activations"] < 0.6


def test_mixed_precision_keeps_weights_and_shrinks_activations(deep):
    """On a card: its autocast lists are the ones that matter."""
    plain, mixed = (deep(recipe, device="a100-80gb") for recipe in (None, Recipe(precision="bf16-mixed")))
    assert mixed.anatomy_bytes["activations"] < 0.9 * plain.anatomy_bytes["activations"]
    same(mixed, plain, "weights", "optimizer_state")


def test_fp32_sums_cost_more_than_sums_in_16_bits(wide):
    half = Recipe(precision="bf16-true", microbatch_size=2)
    plain, sums = wide(half), wide(half.replace(accumulate_dtype="fp32"))
    added = sums.peak_allocated_bytes - plain.peak_allocated_bytes
    assert plain.anatomy_bytes["weights"] < added < 2.5 * plain.anatomy_bytes["weights"]


def test_in_place_activations_save_and_eager_attention_costs(deep, plain_deep):
    assert deep(Recipe(inplace=True)).total_bytes <= plain_deep.total_bytes
    sdpa, eager = (deep(Recipe(attention=kind), device="a100-80gb") for kind in ("sdpa", "eager"))
    assert eager.anatomy_bytes["activations"] > sdpa.anatomy_bytes["activations"]


def test_building_on_the_device_in_16_bits_spares_the_host(wide):
    host, device = (wide(Recipe(precision="bf16-true", init=init), device="a100-80gb") for init in ("host", "device"))
    assert device.host_bytes < 0.2 * host.host_bytes
    same(device, host, "weights", "optimizer_state")


def test_fused_updates_need_no_lists_of_temporaries(wide, plain_wide):
    loop = wide(Recipe(optimizer_impl="for-loop"))
    same(loop, plain_wide, "weights")
    foreach = wide(Recipe(optimizer_impl="foreach"), device="a100-80gb")
    fused = wide(Recipe(optimizer_impl="fused"), device="a100-80gb")
    assert foreach.total_bytes >= fused.total_bytes
