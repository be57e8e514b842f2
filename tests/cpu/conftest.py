"""Shared by all CPU tests: the same threads and signals wherever the suite is started, and caches of its own."""

import importlib
import os
import signal
from pathlib import Path

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


@pytest.fixture(scope="module")
def truth():
    """The benchmark that holds predictions against the allocator's events."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).resolve().parents[2]))
        yield importlib.import_module("benchmarks.cpu_truth")
