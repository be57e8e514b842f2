"""Shared by all CPU tests: the same number of threads and the same signals wherever started, and caches of their own."""

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


@pytest.fixture(autouse=True, scope="session")
def _own_caches(tmp_path_factory):
    """What operators take is asked anew by each session, and not kept among the user's answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("caches")))
        yield
