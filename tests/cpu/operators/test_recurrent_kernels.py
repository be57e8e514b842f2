"""Recurrent layers: on cpu predicted with what the machine says they keep, on cards what cuDNN took on one of them."""

import functools
import json

import pytest
import torch
from benchmarks.results_file import RESULTS
from torch import nn

import snugfit
from snugfit import Recipe, SnugfitWarning
from snugfit.operators.recurrent_kernels import inside_bytes, reserve_bytes


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


def rows_of_a_card():
    """What an H100 kept and took inside for recurrent layers: by layer, training, evaluation and backward."""
    (file,) = RESULTS.glob("nvidia-h100*/kernels.jsonl")
    found = {}
    for line in file.read_text().splitlines():
        row = json.loads(line)
        if row["call"].startswith("recurrent"):
            layer = tuple(
                row[name] for name in ("kind", "layers", "both", "hidden", "input", "batch", "length", "dtype")
            )
            found.setdefault(layer, {})[row["call"]] = row
    return found


def test_a_card_kept_and_took_as_much():
    errors, kept = [], 0
    rows = rows_of_a_card()
    for (kind, layers, both, hidden, inputs, samples, length, dtype), calls in rows.items():
        dtype, wide = getattr(torch, dtype.removeprefix("torch.")), hidden * (2 if both else 1)
        with torch.device("meta"):
            layer = getattr(nn, kind)(inputs, hidden, layers, bidirectional=both, batch_first=True, dtype=dtype)
            given = torch.empty(samples, length, inputs, dtype=dtype)
            state = torch.empty(layers * (2 if both else 1), samples, hidden, dtype=dtype)
        mode, cell = {"RNN": 1, "LSTM": 2, "GRU": 3}[kind], state if kind == "LSTM" else None
        settings = mode, hidden, 0, layers, True, 0.0, True, both, [], None
        reserve = reserve_bytes(given, state, mode, layers)
        (inside,) = inside_bytes((given, list(layer.parameters()), 4, None, state, cell, *settings), {}, (9, 0))
        states = state.nbytes * (2 if kind == "LSTM" else 1)
        kept += calls["recurrent"]["kept"] == given.new_empty((samples, length, wide)).nbytes + states + reserve
        for call, more in (("recurrent", states + samples * length * wide * dtype.itemsize), ("recurrent backward", 0)):
            if call in calls:
                there = calls[call]["inside"] + (calls[call]["kept"] if more else 0)
                errors.append((inside + reserve + more) / there - 1)
    assert len(rows) == 273 and kept >= 271
    assert max(map(abs, errors)) < 0.13
    assert sum(abs(one) < 0.03 for one in errors) > 0.95 * len(errors)


class Packed(Tagger):
    def forward(self, rows):
        _, states = self.layers(rows)
        return self.head((states[0] if isinstance(states, tuple) else states)[-1])


def batch_for(model):
    if model is Tagger:
        return tokens()
    rows = nn.utils.rnn.pack_padded_sequence(torch.zeros(8, 32, 256), list(range(32, 0, -4)), batch_first=True)
    return rows, tokens()[1]


@pytest.mark.parametrize(
    ("model", "kind", "settings", "by_cudnn"),
    [
        (Tagger, "LSTM", {"batch_first": True}, True),
        (Tagger, "GRU", {"num_layers": 2, "bidirectional": True}, True),
        (Tagger, "RNN", {"bias": False}, True),
        (Packed, "LSTM", {"batch_first": True}, True),
        (Packed, "GRU", {"batch_first": True}, True),
        (Tagger, "LSTM", {"proj_size": 64, "hidden": 96}, False),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_cudnn_runs_them_on_cuda(pool, model, kind, settings, by_cudnn, precision):
    made = model(kind, width=256, **{"hidden": 256, **settings})
    if not by_cudnn:
        made.head = nn.Linear(64, 2)
    with pytest.warns(SnugfitWarning, match="cuDNN runs recurrent layers"):
        found = snugfit.estimate(
            made, batch_for(model), loss=cross_entropy, device="rtx-4090", recipe=Recipe(precision=precision), pool=pool
        )
    weights = sum(parameter.nbytes for parameter in made.parameters())
    inside = found.peak_operator.startswith("aten._cudnn_rnn")
    assert found.peak_allocated_bytes > weights + 2**23 * by_cudnn and inside == by_cudnn
