"""Recurrent layers on cpu: the workspace that oneDNN's LSTM keeps for backward, and what it takes inside itself."""

import functools

import pytest
import torch
from torch import nn

import snugfit
from snugfit import Recipe, SnugfitWarning
from snugfit.measure.allocator_events import AllocatorEvents
from snugfit.simulator import recurrent_kernels

LSTM = 2
_aten = torch.ops.aten


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


@pytest.fixture(scope="module")
def pool():
    from snugfit.simulator.pool import Pool

    made = Pool()
    yield made
    made.close()


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
    (measured, _), (predicted, _) = truth.measured(case, recipe), truth.predicted(case, recipe, pool)
    assert measured > 500_000
    assert abs(predicted / measured - 1) <= 0.002, (predicted, measured)


def layer_arguments(steps, samples, inputs, hidden, dtype):
    """Arguments of one layer as torch gives them to oneDNN."""
    sizes = [(4 * hidden, inputs), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,), (samples, hidden)]
    weights = [torch.zeros(size, dtype=dtype) for size in (*sizes, (samples, hidden))]
    source = torch.zeros(steps, samples, inputs, dtype=dtype)
    return (source, *weights, False, [], LSTM, hidden, 1, True, False, False, True)


def highest(run):
    """Bytes that a call takes at its highest point, once its library is warm, and what it returns."""
    run()
    events = AllocatorEvents()
    events.start()
    result = run()
    events.stop()
    return events.peak_bytes, result


def foreseen(results, row, args):
    made = sum(one.untyped_storage().nbytes() for one in results)
    return made + sum(space.nbytes for space in row(args, {}))


SHAPES = [
    (32, 8, 64, 64, torch.float32),
    (7, 3, 16, 16, torch.float32),
    (5, 160, 37, 53, torch.float32),  # so many samples are multiplied step by step
    (4, 4, 300, 280, torch.float32),
    (32, 8, 64, 64, torch.bfloat16),
    (5, 3, 37, 53, torch.bfloat16),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_training_takes_what_is_predicted(shape):
    args = layer_arguments(*shape)
    measured, results = highest(lambda: _aten.mkldnn_rnn_layer(*args))
    fake = recurrent_kernels.lstm_layer(*args)
    assert [(one.shape, one.dtype) for one in fake] == [(one.shape, one.dtype) for one in results]
    assert foreseen(fake, recurrent_kernels.layer_row, args) == pytest.approx(measured, abs=256)

    gradient = torch.zeros_like(results[0])
    settings = (None, None, False, LSTM, shape[3], 1, True, True, False, [], False, results[3])
    backward = (*args[:7], *results[:3], gradient, *settings)
    measured, results = highest(lambda: _aten.mkldnn_rnn_layer_backward(*backward))
    fake = recurrent_kernels.lstm_layer_backward(*backward)
    assert [(one.shape, one.dtype) for one in fake] == [(one.shape, one.dtype) for one in results]
    assert foreseen(fake, recurrent_kernels.backward_row, backward) == pytest.approx(measured, abs=256)


@pytest.mark.parametrize("shape", SHAPES)
def test_inference_keeps_no_workspace(shape):
    args = layer_arguments(*shape)
    with torch.no_grad():
        measured, _ = highest(lambda: _aten.mkldnn_rnn_layer(*args))
        fake = recurrent_kernels.lstm_layer(*args)
        assert fake[3].numel() == 0
        assert foreseen(fake, recurrent_kernels.layer_row, args) == pytest.approx(measured, abs=2048)


def test_a_gradient_that_is_not_contiguous_is_copied():
    args = layer_arguments(6, 4, 24, 32, torch.float32)
    results = _aten.mkldnn_rnn_layer(*args)
    settings = (None, None, False, LSTM, 32, 1, True, True, False, [], False, results[3])
    plain, spread = (
        (*args[:7], *results[:3], gradient, *settings) for gradient in (results[0], results[0][:1].expand(6, 4, 32))
    )
    inside = [sum(space.nbytes for space in recurrent_kernels.backward_row(given, {})) for given in (plain, spread)]
    assert inside[1] - inside[0] == 6 * 4 * 32 * 4


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_on_cuda_the_reserve_of_cudnn_is_said_to_be_unknown(kind):
    model = Tagger(kind, batch_first=True)
    with pytest.warns(SnugfitWarning, match="cuDNN runs recurrent layers"):
        found = snugfit.estimate(model, tokens(), loss=cross_entropy, device="rtx-4090")
    assert found.peak_allocated_bytes > sum(parameter.nbytes for parameter in model.parameters())
