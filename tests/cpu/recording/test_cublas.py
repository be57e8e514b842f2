"""What cuBLAS has to work in, by the version of torch."""

from contextlib import closing
from unittest import mock

import pytest
import torch

from snugfit.fake_device.personality import Personality
from snugfit.recipe import Recipe
from snugfit.recording import cublas
from snugfit.simulator.given_training import record_given
from snugfit.workers.pool import Pool

ROWS = 16
SMALL, LARGE, LT = 8519680, 32 * 2**20, 2**20


def with_torch(release, capability, *, bias=True, recipe=None):
    """Runs in a worker: a training of two layers, as a torch of that release would have it."""
    batch = (torch.empty(ROWS, 8, device="meta"), torch.empty(ROWS, dtype=torch.int64, device="meta"))

    def build():
        block = torch.nn.Sequential(torch.nn.Linear(8, 4, bias=bias), torch.nn.ReLU())
        return torch.nn.Sequential(block, torch.nn.Linear(4, 4, bias=bias))

    def loss(output, batch):
        return torch.nn.functional.cross_entropy(output, batch[1])

    arguments = (build, batch, {"loss": loss}, recipe or Recipe(), Personality(capability=capability))
    with mock.patch.object(cublas, "torch_release", lambda: release):
        return record_given(*arguments).trace


def kept(trace, operator):
    return [row.nbytes for row in trace.storages if row.operator == operator]


@pytest.mark.parametrize(
    ("release", "capability", "size", "own"),
    [
        ((2, 11), (8, 0), SMALL, [LT]), ((2, 11), (9, 0), LARGE, [LT]), ((2, 11), (12, 0), SMALL, [LT]),
        ((2, 12), (8, 9), SMALL, []), ((2, 14), (9, 0), LARGE, []), ((2, 14), (12, 0), LARGE, []),
    ],
)  # fmt: skip
def test_a_workspace_stays(pool, release, capability, size, own):
    """Two of cuBLAS's, of forward and of autograd's thread; only forward adds a bias."""
    trace = pool.call(with_torch, release, capability)
    assert (kept(trace, cublas.CUBLAS), kept(trace, cublas.CUBLASLT)) == ([size, size], own)


def test_without_a_bias_cublaslt_has_nothing_to_do(pool):
    assert kept(pool.call(with_torch, (2, 11), (9, 0), bias=False), cublas.CUBLASLT) == []


def test_a_bias_that_is_added_in_backward_too_takes_a_second_one(pool):
    trace = pool.call(with_torch, (2, 11), (9, 0), recipe=Recipe(checkpoint=("0",)))
    assert kept(trace, cublas.CUBLASLT) == [LT, LT]


def test_each_product_gives_its_workspace_back():
    with closing(Pool()) as fresh:  # others know by now what products take in this torch
        for capability, size in (((8, 0), SMALL), ((9, 0), LARGE)):
            trace = fresh.call(with_torch, (2, 15), capability)
            assert kept(trace, cublas.CUBLAS) == kept(trace, cublas.CUBLASLT) == []
            for operator, nbytes in (("aten.addmm.default", LT), ("aten.mm.default", size)):
                assert {row.nbytes for row in trace.workspaces if row.operator == operator} == {nbytes}
