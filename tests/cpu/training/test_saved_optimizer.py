"""A saved optimizer in another run: its state comes, and which kernels run stays the recipe's choice."""

import copy

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model

import snugfit
from snugfit import InputError, Recipe

BATCHES = make_batches("mlp", 8, 2)


def trainer_of(impl=None):
    return snugfit.prepare(make_model("mlp"), Recipe(optimizer_impl=impl), loss=cross_entropy, device="cpu")


@pytest.mark.parametrize("saved_by", ["for-loop", "fused"])
def test_kernels_stay_those_of_the_recipe(saved_by):
    loads = {"for-loop": "fused", "fused": "for-loop"}[saved_by]
    first = trainer_of(saved_by)
    first.step(BATCHES[0])
    second = trainer_of(loads)
    second.update.health.waits = False  # the masked path needs the kernels it asked for
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.step(BATCHES[1])
    second.finish()
    first.step(BATCHES[1])
    assert bool(second.update.optimizer.param_groups[0]["fused"]) == (loads == "fused")
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-13)


def test_state_of_other_parameters_is_refused():
    trainer = trainer_of()
    foreign = torch.optim.AdamW([torch.zeros(1, requires_grad=True)]).state_dict()
    with pytest.raises(InputError, match="does not fit this model"):
        trainer.load_state_dict({**trainer.state_dict(), "optimizer": foreign})
