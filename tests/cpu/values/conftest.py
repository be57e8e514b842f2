"""A small model that is estimated with a loss which asks for values."""

import pytest
import torch
from torch import nn

import snugfit

BATCH = torch.randn(16, 8), torch.arange(16) % 3


@pytest.fixture(scope="module", params=["cpu", "rtx-4090"])
def estimate(pool, request):
    def run(loss, **arguments):
        model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
        return snugfit.estimate(model, BATCH, device=request.param, pool=pool, loss=loss, **arguments)

    return run
