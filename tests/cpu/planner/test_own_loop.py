"""Plans for loops of one's own: the step as it is written, and only what lives in the model."""

import pytest
import torch
from own_loops import LOOPS
from small_models import MLP, cross_entropy

import snugfit
from snugfit import InputError, RecipeError
from snugfit.techniques import LOOP_FIELDS

LOOP = LOOPS["dcgan"]


def asked(**given):
    batch = torch.empty(8192, 3, 16, 16, device="meta")
    return {
        "model": LOOP.model,
        "batch": batch,
        "step": LOOP.new_step(),
        "optimizer": None,
        "device": "rtx-4090",
        **given,
    }


@pytest.fixture(scope="module")
def planned(pool):
    plain = snugfit.estimate(**asked(pool=pool))
    budget = int((plain.context_bytes + 0.9 * plain.smallest_bytes()) * 1.06)
    return snugfit.plan(**asked(budget=budget, pool=pool))


def test_only_what_lives_in_the_model_is_chosen(planned):
    changed = set(planned.recipe.to_mapping(defaults=False))
    assert changed and not changed & LOOP_FIELDS
    assert planned.fidelity.level == "exact" and planned.fallbacks == ()
    assert {planned.reasons[name] for name in LOOP_FIELDS & planned.reasons.keys()} == {"off: it belongs to the loop."}
    assert "belongs to the loop" in planned.explain()


def test_its_estimate_is_that_of_the_step_with_the_recipe(planned, pool):
    found = snugfit.estimate(**asked(recipe=planned.recipe, pool=pool))
    assert found.peak_allocated_bytes == planned.estimate.peak_allocated_bytes
    assert found.steps == planned.estimate.steps == 2


def test_it_is_applied_as_it_is(planned):
    applied = snugfit.apply(LOOP.model(), planned)
    assert applied.recipe == planned.recipe


def test_own_loop_without_a_step_is_predicted_by_the_trainers(pool):
    batch = torch.empty(64, 12, device="meta"), torch.empty(64, dtype=torch.long, device="meta")
    plan = snugfit.plan(
        MLP(), batch, loss=cross_entropy, own_loop=True, budget="4GiB", device="rtx-4090", allow="rounding", pool=pool
    )
    assert not set(plan.recipe.to_mapping(defaults=False)) & LOOP_FIELDS


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"pin": {"microbatch-size": 4}}, RecipeError, "microbatch_size is pinned, and belongs to the loop"),
        ({"gpus": 2}, InputError, "is for one GPU"),
        ({"loss": cross_entropy}, InputError, "step= does everything itself"),
        ({"steps": 0}, InputError, "steps is 0"),
        ({"step": "step"}, InputError, "step is a str"),
        ({"step": None, "steps": 3}, InputError, "no step= is given"),
    ],
)
def test_what_cannot_be_is_said(given, error, words):
    with pytest.raises(error, match=words):
        snugfit.plan(**asked(budget="1GiB", **given))
