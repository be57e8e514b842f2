"""Sparse matrices: their parts, and fake ones that torch takes for its own."""

import pytest
import torch

from snugfit.private_torch import fake_tensors
from snugfit.private_torch.sparse_layouts import (
    SparseFake,
    filled,
    is_coalesced,
    of_parts,
    parts_of,
    sparse_fake,
    without_memory,
)

LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


def matrix(layout):
    return torch.tensor([[0.0, 2, 0], [1, 0, 3]]).to_sparse(layout=layout)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts(layout):
    """parts_of, of_parts, is_coalesced, without_memory, filled"""
    given = matrix(layout)
    parts = parts_of(given)
    assert torch.equal(of_parts(parts, given.shape, layout, is_coalesced(given)).to_dense(), given.to_dense())
    assert is_coalesced(given) is (layout is torch.sparse_coo)
    bare = without_memory(given)
    assert bare.is_meta and bare.layout is layout and bare._nnz() == 3
    assert [part.shape for part in parts_of(bare)] == [part.shape for part in parts]
    assert filled(bare).to_dense().sum() == 3
    dense = torch.ones(3, 2).t()
    assert parts_of(dense)[0] is dense and without_memory(dense).stride() == dense.stride()


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fake_ones(layout):
    """SparseFake, sparse_fake"""
    given = matrix(layout)
    made = sparse_fake(fake_tensors.new_fake_mode(), parts_of(given), given.shape, layout, coalesced=True)
    assert isinstance(made, SparseFake) and made.layout is layout and made.shape == given.shape
    assert made.is_sparse is (layout is torch.sparse_coo) and made.device.type == "cpu"
    assert all(one is other for one, other in zip(parts_of(made), made.parts, strict=True))
