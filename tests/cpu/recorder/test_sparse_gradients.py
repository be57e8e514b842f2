"""Embeddings with sparse gradients: a row counts for each index, and they are never the end of a worker."""

import pytest
import torch
import torch.nn.functional as F
from own_scripts import estimated, measured_bytes, written
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
def test_a_row_counts_for_each_index_and_that_is_said(pool, device):
    found, dense = (
        snugfit.estimate(Bags(sparse), BATCH, device=device, pool=pool, loss=entropy, optimizer="sgd")
        for sparse in (True, False)
    )
    saved = dense.anatomy_bytes["weights"] - 2 * 64 * 16 * 4
    assert dense.peak_allocated_bytes - found.peak_allocated_bytes == pytest.approx(saved, rel=0.1)
    assert any(text.startswith("sparse gradients of embeddings count a row") for text in found.answered)
    assert not any("sparse" in text for text in dense.answered)


def test_what_looks_at_all_rows_counts_them(pool):
    def adagrad(weights):
        return torch.optim.Adagrad(weights, lr=0.1)

    found, dense = (
        snugfit.estimate(Bags(sparse), BATCH, device="cpu", pool=pool, loss=entropy, optimizer=adagrad)
        for sparse in (True, False)
    )
    assert found.peak_allocated_bytes <= dense.peak_allocated_bytes
    assert found.anatomy_bytes["optimizer_state"] == dense.anatomy_bytes["optimizer_state"]


SCRIPT = """
import torch, torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
lookup = nn.{lookup}
head = nn.Linear(64, 1)
optimizers = torch.optim.{optimizer}(lookup.parameters(), lr=0.1), torch.optim.SGD(head.parameters(), lr=0.1)
for _ in range(4):
    for optimizer in optimizers:
        optimizer.zero_grad()
    for _ in range({times}):
        words = torch.randint(200000, (4096, 4))
        F.mse_loss(head(lookup(words)).flatten(), torch.rand(4096 * {rows})).backward()
    for optimizer in optimizers:
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("lookup", "optimizer", "times", "over"),
    [
        ("Embedding", "SGD", 1, 1e-3),
        ("Embedding", "SGD", 2, 1e-3),
        ("Embedding", "SparseAdam", 1, 0.03),  # indices that come twice
        ("EmbeddingBag", "SGD", 1, 0.03),  # what came in is there until the rows are copied
    ],
)
def test_as_measured(tmp_path, capsys, lookup, optimizer, times, over):
    rows = 4 if lookup == "Embedding" else 1
    text = SCRIPT.format(lookup=f"{lookup}(200000, 64, sparse=True)", optimizer=optimizer, times=times, rows=rows)
    script = written(tmp_path, text)
    _, found, err = estimated(capsys, script, device="cpu")
    assert found is not None, err
    assert -2e-3 <= found["peak_allocated_bytes"] / measured_bytes(script) - 1 <= over


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
