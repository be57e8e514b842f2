"""Shared by all CPU tests: one thread, so that results do not depend on the machine's load, and caches of their own."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _own_caches(tmp_path_factory):
    """What operators take is asked anew by each session, and not kept among the user's answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("caches")))
        yield
