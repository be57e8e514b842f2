"""Shared by all CPU tests: the same number of threads and the same signals wherever the suite is started."""

import os
import signal

import pytest
import torch

THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))


def pytest_configure(config):
    """Lets Ctrl-C reach tests that are about it: a shell starts what runs in the background with SIGINT ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _threads():
    torch.set_num_threads(THREADS)
