"""Recurrent layers on a pretend card: values of torch's own for the processor, and the bytes that are predicted."""

import warnings

import pytest
import torch
from torch import nn

from snugfit.pretend_card.present import card_present

SETTINGS = [{}, {"batch_first": True}, {"num_layers": 2, "bidirectional": True, "bias": False}]


def losses(device, kind, settings, *, packed=False, dropout=0.0):
    torch.manual_seed(0)
    layers = getattr(nn, kind)(12, 20, dropout=dropout, **settings).to(device)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.5)
    x = torch.randn(5, 7, 12, generator=torch.Generator().manual_seed(1))
    if packed:
        x = nn.utils.rnn.pack_padded_sequence(x, [7, 5, 4, 2, 1], batch_first=True)
    x = x.to(device)
    found = []
    for _ in range(3):
        output = layers(x)[0]
        loss = (output.data if packed else output).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    with torch.no_grad():
        output = layers.eval()(x)[0]
    return [*found, (output.data if packed else output).mean().item()]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(("settings", "packed"), [*((one, False) for one in SETTINGS), ({"batch_first": True}, True)])
def test_they_learn_what_they_do_on_the_processor(kind, settings, packed):
    wanted = losses("cpu", kind, settings, packed=packed)
    with card_present(None), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = losses("cuda", kind, settings, packed=packed)
    assert found == pytest.approx(wanted, rel=1e-5) and wanted[0] > wanted[2]


def test_backward_draws_the_masks_of_forward_again():
    settings = {"num_layers": 2}
    with card_present(None, seed=3), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        layers = nn.LSTM(12, 20, dropout=0.5, **settings).to("cuda", torch.float64)
        x = torch.randn(5, 7, 12, dtype=torch.float64, device="cuda", requires_grad=True)
        torch.manual_seed(5)
        layers(x)[0].sum().backward()
        step = 1e-6
        numbers = []
        for sign in (1, -1):
            moved = x.detach().clone()
            moved[2, 3, 4] += sign * step
            torch.manual_seed(5)
            numbers.append(layers(moved)[0].sum().item())
        slope = x.grad[2, 3, 4].item()
    assert slope == pytest.approx((numbers[0] - numbers[1]) / (2 * step), rel=1e-4)
