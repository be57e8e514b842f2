"""Fake versions make what the real ones make."""

import pytest
import torch

from snugfit.fake_device import fake_versions


@pytest.mark.parametrize("together", [True, False])
def test_ctc_loss_has_the_real_shapes(together):
    log_probs = torch.randn(20, 2, 5).log_softmax(-1)
    targets = torch.ones(6 if together else (2, 3), dtype=torch.long)
    given = (log_probs, targets, torch.tensor([20, 15]), torch.tensor([3, 3]))
    real = torch.ops.aten._ctc_loss.Tensor(*given, 0, True)
    made = fake_versions.ctc_loss(*given, 0, True)
    assert [(one.shape, one.stride(), one.dtype) for one in made] == [
        (one.shape, one.stride(), one.dtype) for one in real
    ]
    gradient = torch.ops.aten._ctc_loss_backward.Tensor(torch.ones(2), *given, *real, 0, True)
    assert fake_versions.ctc_loss_backward(torch.ones(2), *given, *made, 0, True).stride() == gradient.stride()


@pytest.mark.parametrize("name", ["exponential_", "cauchy_", "geometric_", "log_normal_"])
def test_numbers_are_drawn_in_place_by_a_generator_as_without_one(name):
    arguments = (0.5,) if name == "geometric_" else ()
    drawn = torch.ones(3, 2)
    made = fake_versions.drawn_in_place(drawn, *arguments, generator=torch.Generator())
    assert made is getattr(drawn, name)(*arguments, generator=torch.Generator())


def test_binomial_and_dirichlet_numbers_have_the_real_layout():
    rates = torch.full((4, 3), 2.0).t()
    for real in (torch.binomial(rates, rates / 4), torch._sample_dirichlet(rates), torch._dirichlet_grad(*[rates] * 3)):
        made = fake_versions.drawn_like(rates, rates)
        assert (made.shape, made.stride(), made.dtype) == (real.shape, real.stride(), real.dtype)
