"""Embeddings with sparse gradients: simulated as dense ones, said so, and never the end of a worker."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from snugfit import CannotSimulateError, InputError

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
    assert found.peak_allocated_bytes == dense.peak_allocated_bytes
    assert any(text.startswith("sparse gradients (bag) were counted as dense") for text in found.answered)
    assert not any("sparse" in text for text in dense.answered)


def test_frozen_ones_are_left_alone(pool):
    model = Bags()
    model.bag.weight.requires_grad_(False)
    found = snugfit.estimate(model, BATCH, device="cpu", pool=pool, loss=entropy)
    assert not any("sparse" in text for text in found.answered)


@pytest.mark.parametrize("model", [ByFunction, BagByFunction])
@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
def test_a_lookup_by_function_is_refused_and_the_worker_lives(pool, device, model):
    import os

    before = pool.call(os.getpid)
    with pytest.raises(CannotSimulateError, match="sparse=True was called as a function"):
        snugfit.estimate(model(), BATCH, device=device, pool=pool, loss=entropy, optimizer="sgd")
    assert pool.call(os.getpid) == before


def test_an_optimizer_that_wants_them_sparse_works_for_real_only(pool):
    model, batch = nn.Sequential(nn.Embedding(100, 3, sparse=True)), (torch.arange(16), BATCH[1])
    optimizer = lambda weights: torch.optim.SparseAdam(weights)  # noqa: E731
    with pytest.raises(CannotSimulateError, match="limitation of the simulator"):
        snugfit.estimate(model, batch, device="cpu", pool=pool, loss=entropy, optimizer=optimizer)
    trainer = snugfit.prepare(model, device="cpu", loss=entropy, optimizer=optimizer)
    assert trainer.step(batch) > trainer.step(batch)


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
