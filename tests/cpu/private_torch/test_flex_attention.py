"""FlexAttention calls the kernel that it is given, on any device, and compiles nothing."""

import sys

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import flex_attention as module

from snugfit.attributes import replaced
from snugfit.private_torch.flex_attention import MODULE, with_kernel


def test_it_calls_the_kernel_in_place_of_its_own(monkeypatch):
    def kernel(query, key, value, score_mod, mask, scale, options):
        called.append((scale, len(mask)))
        out = F.scaled_dot_product_attention(query, key, value, scale=scale)
        return out, out.sum(-1), out.amax(-1)

    called = []
    query, key, value = (torch.randn(2, 3, 16, 8, requires_grad=True) for _ in range(3))
    changes = with_kernel(kernel)
    assert all(owner is module and hasattr(module, name) for owner, name, _ in changes) and len(changes) == 3
    with replaced(changes):
        out = module.flex_attention(query, key, value)
        monkeypatch.setattr(torch, "compile", None)  # nor does it compile
        meta = module.flex_attention(*(one.detach().to("meta") for one in (query, key, value)))
    out.sum().backward()
    assert torch.equal(out, F.scaled_dot_product_attention(query, key, value)) and query.grad is not None
    assert meta.is_meta and called[0][0] == pytest.approx(8**-0.5) and len(called) == 2


def test_nothing_is_replaced_where_it_is_not_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, MODULE)
    assert with_kernel(None) == []
