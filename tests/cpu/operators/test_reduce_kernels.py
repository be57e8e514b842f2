"""Partial sums of several blocks, as torch's CUDA kernels take them."""

import pytest
import torch

from snugfit.operators.kernels import workspaces
from snugfit.operators.reduce_kernels import scratch_bytes


def meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("tokens, recorded", [(256, 8_388_608), (1024, 33_554_432)])
def test_gradients_of_a_norms_weight_take_what_an_allocator_recorded(tokens, recorded):
    """Recorded on a card in github.com/Wedsonlin/assignment2-systems, medium model, 4 sequences."""
    assert scratch_bytes(meta(4, tokens, 1024), [0, 1]) == recorded


@pytest.mark.parametrize(
    "tensor, over",
    [
        (meta(64, 1000), [0]),  # too few rows for several blocks
        (meta(64, 197, 1024), [2]),  # along the fastest dimension, with many results
        (meta(8, 1), [0]),
        (meta(0, 5), [0]),
        (meta(5), None),
        (meta(4, 1, 1), [1, 2]),
    ],
)
def test_small_sums_take_nothing(tensor, over):
    assert scratch_bytes(tensor, over) == 0


def test_layout_types_and_spelling_of_a_sum():
    rows = meta(8192, 4096)
    wanted = scratch_bytes(rows, [0])
    assert wanted == 4 * 4096 * 54 * 32 * 4
    assert scratch_bytes(rows, [-2]) == scratch_bytes(meta(2, 4096, 4096), [0, 1]) == wanted
    assert scratch_bytes(meta(8192, 4096, dtype=torch.bfloat16), [0]) == wanted
    assert scratch_bytes(meta(8192, 4095), [0]) < wanted  # no vectors of four
    assert scratch_bytes(meta(4096, 8192).t(), [0]) == scratch_bytes(meta(4096, 8192), [1])
    assert 0 < scratch_bytes(meta(10**8), None) < 10_000
    for operator in ("aten.sum.dim_IntList", "aten.mean.dim"):
        (inner,) = workspaces(operator, (rows, [0]), {}, (8, 0))
        assert inner.nbytes == wanted
    (inner,) = workspaces("aten.sum.default", (meta(10**8),), {"dtype": torch.float32}, (8, 0))
    assert inner.nbytes == scratch_bytes(meta(10**8), None)
    (inner,) = workspaces("aten.sum.dim_IntList", (rows.double(), [0]), {}, (8, 0))
    assert inner.nbytes == 2 * wanted
