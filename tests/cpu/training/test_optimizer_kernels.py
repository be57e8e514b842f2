"""Which kernels an optimizer gets: fused where torch has them and they work."""

import pytest
import torch

from snugfit.errors import InputError
from snugfit.recipe import Recipe
from snugfit.training import optimizers
from snugfit.training.optimizers import make_optimizer
from snugfit.workload import Workload


def made(name, dtype=torch.float32, impl=None, device="cpu"):
    weight = torch.nn.Parameter(torch.zeros(64, dtype=dtype))
    recipe = Recipe(optimizer_impl=impl)
    return weight, make_optimizer(
        recipe, Workload(optimizer=name, lr=1.0), [{"params": [weight]}], torch.device(device)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["sgd", "adamw", "adam"])
def test_the_default_kernel_moves_every_weight(name, dtype):
    weight, optimizer = made(name, dtype)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert bool((weight.detach() != 0).all())


def test_fused_sgd_of_an_old_torch_is_not_used_for_16_bit_weights_on_cpu(monkeypatch):
    monkeypatch.setattr(optimizers, "torch_release", lambda: (2, 13))
    assert not made("sgd", torch.bfloat16)[1].defaults["fused"]
    assert made("sgd")[1].defaults["fused"] and made("adamw", torch.bfloat16)[1].defaults["fused"]
    with pytest.raises(InputError, match="does not change 16-bit weights on cpu; use foreach or for-loop"):
        made("sgd", torch.bfloat16, impl="fused")


def test_fused_is_refused_where_torch_has_no_kernels():
    with pytest.raises(InputError, match="no fused kernels for meta"):
        made("adamw", impl="fused", device="meta")
