"""Shared by all CPU tests: one thread, so that results do not depend on the machine's load."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
