"""Tests of what a CUDA device does. Without one they run on the pretend card, except where real kernels are asked for."""

import pytest
import torch

from snugfit.pretend_card.present import card_present

GIB = 2**30
REAL = torch.cuda.is_available()


def pytest_collection_modifyitems(items):
    for item in items:
        if not REAL and item.get_closest_marker("real_kernels"):
            item.add_marker(pytest.mark.skip(reason="needs the kernels of a CUDA device, and there is none here"))


@pytest.fixture(autouse=True)
def card():
    """The card of this machine, or a pretended one of 8 GiB."""
    if REAL:
        yield
        return
    with card_present(8 * GIB):
        yield
