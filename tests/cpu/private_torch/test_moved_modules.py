"""A model of fake weights goes to another type, and who holds some of them keeps what they were."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from snugfit.attributes import replaced
from snugfit.private_torch.moved_modules import exchange, moves


def test_weights_are_the_same_ones_and_who_holds_them_keeps_what_they_were():
    with FakeTensorMode(), replaced(moves()):
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
        for weight in model.parameters():
            weight.requires_grad_(weight.dim() > 1)
        before = list(map(id, model.parameters()))
        joined = torch.nn.utils.parameters_to_vector(model.parameters())
        held = model(torch.ones(4, 2)), joined, [one.expand_as(one) for one in model.parameters()]
        assert model.to(torch.float64) is model
        assert list(map(id, model.parameters())) == before
        assert {one.dtype for one in model.parameters()} == {torch.float64}
        assert [one.requires_grad for one in model.parameters()] == [True, False, True, False]
        assert held[0].dtype == held[1].dtype == held[2][0].dtype == torch.float32
        model(torch.ones(4, 2, dtype=torch.float64)).sum().backward()
        assert [one.grad is not None for one in model.parameters()] == [True, False, True, False]
        assert model[0].weight.grad.dtype == torch.float64


def test_tensors_are_exchanged_with_what_python_set_on_them():
    one, other = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(3))
    one.owner, held = "one", [one.expand(4, 2), one * 2]
    exchange(one, other)
    assert one.shape == (3,) and other.shape == (2,) and other.owner == "one" and not hasattr(one, "owner")
    assert held[0].sum() == 8


def test_hooks_on_weights_that_are_exchanged_stay(monkeypatch):
    monkeypatch.setattr(torch.__future__, "get_swap_module_params_on_conversion", lambda: True)  # as of fake weights
    called = []
    model = torch.nn.Linear(2, 1, bias=False)
    before = model.weight.register_hook(lambda gradient: called.append("before"))
    model.weight.register_post_accumulate_grad_hook(lambda weight: called.append("behind"))
    with replaced(moves()):
        model.to(torch.float64)
    for expected in (["before", "behind"], ["before", "behind", "behind"]):
        model(torch.zeros(1, 2, dtype=torch.float64)).sum().backward()
        assert called == expected
        before.remove()
