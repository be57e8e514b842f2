"""A model of fake weights that somebody else holds goes to another type behind the training, and not before."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from snugfit.attributes import replaced
from snugfit.private_torch.moved_modules import moves


@pytest.mark.parametrize("trained", [True, False])
def test_weights_that_are_held_are_left_to_their_holder(trained):
    with FakeTensorMode(), replaced(moves(lambda: trained)):
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
        for weight in model.parameters():
            weight.requires_grad_(weight.dim() > 1)
        held = (
            torch.nn.utils.parameters_to_vector(model.parameters()),
            [one.expand_as(one) for one in model.parameters()],
        )
        if trained:
            assert model.to(torch.float64) is model
            assert {one.dtype for one in model.parameters()} == {torch.float64}
            assert [one.requires_grad for one in model.parameters()] == [True, False, True, False]
        else:
            with pytest.raises(RuntimeError, match="Couldn't swap"):
                model.to(torch.float64)
        assert held[0].dtype == torch.float32


def test_weights_that_nobody_holds_stay_the_same_ones():
    with FakeTensorMode(), replaced(moves(lambda: True)):
        model = torch.nn.Linear(2, 3)
        before = list(map(id, model.parameters()))
        model.to(torch.float64)
        assert list(map(id, model.parameters())) == before


def test_hooks_on_weights_that_are_exchanged_stay(monkeypatch):
    monkeypatch.setattr(torch.__future__, "get_swap_module_params_on_conversion", lambda: True)  # as of fake weights
    called = []
    model = torch.nn.Linear(2, 1, bias=False)
    before = model.weight.register_hook(lambda gradient: called.append("before"))
    model.weight.register_post_accumulate_grad_hook(lambda weight: called.append("behind"))
    with replaced(moves(lambda: False)):
        model.to(torch.float64)
    for expected in (["before", "behind"], ["before", "behind", "behind"]):
        model(torch.zeros(1, 2, dtype=torch.float64)).sum().backward()
        assert called == expected
        before.remove()
