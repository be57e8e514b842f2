"""Recurrent layers: on cpu predicted with what the machine says they keep, on cards named as an approximation."""

import functools

import pytest
import torch
from torch import nn

import snugfit
from snugfit import Recipe, SnugfitWarning


class Tagger(nn.Module):
    """An embedding, recurrent layers, and a class for the last step."""

    def __init__(self, kind, width=64, hidden=64, **settings):
        super().__init__()
        self.embedding = nn.Embedding(500, width)
        self.layers = getattr(nn, kind)(width, hidden, **settings)
        self.first = settings.get("batch_first", False)
        self.head = nn.Linear(hidden * (2 if settings.get("bidirectional") else 1), 2)

    def forward(self, ids):
        states, _ = self.layers(self.embedding(ids if self.first else ids.T))
        return self.head(states[:, -1] if self.first else states[-1])


def tokens():
    return torch.zeros(8, 32, dtype=torch.long), torch.zeros(8, dtype=torch.long)


def cross_entropy(output, batch):
    return nn.functional.cross_entropy(output, batch[1])


@pytest.mark.parametrize(
    ("kind", "settings", "precision"),
    [
        ("LSTM", {}, "fp32"),
        ("LSTM", {"num_layers": 2, "batch_first": True}, "fp32"),
        ("LSTM", {"num_layers": 2, "bidirectional": True, "dropout": 0.1, "batch_first": True}, "fp32"),
        ("LSTM", {"width": 37, "hidden": 53, "bias": False}, "fp32"),
        ("LSTM", {"batch_first": True}, "bf16-mixed"),
        ("LSTM", {"width": 96, "hidden": 256}, "bf16-true"),
        ("GRU", {"num_layers": 2, "bidirectional": True}, "fp32"),
        ("RNN", {"batch_first": True}, "fp32"),
    ],
)
def test_predicted_peak_is_the_measured_one(truth, pool, kind, settings, precision):
    case = truth.Case(functools.partial(Tagger, kind, **settings), tokens, cross_entropy, False)
    recipe = Recipe(precision=precision)
    try:
        measured, _ = truth.measured(case, recipe)
    except RuntimeError as error:
        pytest.skip(f"oneDNN has no such layer with the instructions that it may use here: {error}")
    predicted, _ = truth.predicted(case, recipe, pool)
    assert measured > 500_000
    assert abs(predicted / measured - 1) <= 0.002, (predicted, measured)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_on_cuda_the_reserve_of_cudnn_is_said_to_be_unknown(kind):
    model = Tagger(kind, batch_first=True)
    with pytest.warns(SnugfitWarning, match="cuDNN runs recurrent layers"):
        found = snugfit.estimate(model, tokens(), loss=cross_entropy, device="rtx-4090")
    assert found.peak_allocated_bytes > sum(parameter.nbytes for parameter in model.parameters())
