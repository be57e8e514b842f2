"""Tests that need a CUDA device; without one they are collected and skipped with the reason."""

import pytest
import torch

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none here")


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(NEEDS_GPU)
