"""Embeddings with sparse gradients: simulated as dense ones, said so, and never the end of a worker."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from snugfit import InputError

BATCH = torch.arange(64).view(16, 4), torch.arange(16) % 3


class Bags(nn.Module):
    def __init__(self, sparse=True):
        super().__init__()
        self.bag = nn.EmbeddingBag(1000, 16, sparse=sparse)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.bag(x))


class ByFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(100, 3))

    def forward(self, x):
        return F.embedding(x, self.weight, sparse=True).mean(1)


class BagByFunction(ByFunction):
    def forward(self, x):
        return F.embedding_bag(x, self.weight, sparse=True)


def entropy(output, batch):
    return F.cross_entropy(output, batch[1])


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
@pytest.mark.parametrize("optimizer", ["sgd", lambda weights: torch.optim.Adagrad(weights, lr=0.1)])
def test_they_count_as_dense_and_that_is_said(pool, optimizer, device):
    found = snugfit.estimate(Bags(), BATCH, device=device, pool=pool, loss=entropy, optimizer=optimizer)
    dense = snugfit.estimate(Bags(sparse=False), BATCH, device=device, pool=pool, loss=entropy, optimizer=optimizer)
    assert found.peak_allocated_bytes == pytest.approx(dense.peak_allocated_bytes, rel=1e-3)  # SGD: one by one
    assert any(text.startswith("sparse gradients of embeddings were counted as dense") for text in found.answered)
    assert not any("sparse" in text for text in dense.answered)


def test_frozen_ones_are_left_alone(pool):
    model = Bags()
    model.bag.weight.requires_grad_(False)
    found = snugfit.estimate(model, BATCH, device="cpu", pool=pool, loss=entropy)
    assert not any("sparse" in text for text in found.answered)


@pytest.mark.parametrize("model", [ByFunction, BagByFunction])
@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
def test_so_does_a_lookup_by_function(pool, device, model):
    found = snugfit.estimate(model(), BATCH, device=device, pool=pool, loss=entropy, optimizer="sgd")
    assert any(text.startswith("sparse gradients") for text in found.answered)


def test_an_optimizer_that_wants_them_sparse_is_given_dense_ones(pool):
    """Its state is Adam's."""
    batch = torch.arange(16), BATCH[1]

    def bytes_with(optimizer, sparse):
        model = nn.Sequential(nn.Embedding(1000, 3, sparse=sparse))
        found = snugfit.estimate(model, batch, device="cpu", pool=pool, loss=entropy, optimizer=optimizer)
        return found.peak_allocated_bytes

    sparse = bytes_with(lambda weights: torch.optim.SparseAdam(weights), sparse=True)
    assert sparse == bytes_with(lambda weights: torch.optim.Adam(weights), sparse=False)


def test_estimate_refuses_what_prepare_refuses(pool):
    texts = []
    for ask in (
        lambda: snugfit.prepare(Bags(), device="cpu", loss=entropy),
        lambda: snugfit.estimate(Bags(), BATCH, device="cpu", pool=pool, loss=entropy),
    ):
        with pytest.raises(InputError, match="adamw takes dense gradients only") as caught:
            ask()
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
