"""Shared by all CPU tests: the same threads and signals wherever the suite is started, and caches of its own."""

import contextlib
import gc
import importlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from warm_start import servers, warm_start

THREADS = int(os.environ.setdefault("OMP_NUM_THREADS", "1"))
MANY_MODULES = 50
SHARED = pytest.StashKey()
_kept = {"modules": 0}
"""How many were imported when the garbage collector was last told to leave alone what is there."""


def pytest_addoption(parser):
    parser.addoption("--fresh-processes", action="store_true", help="start every process with imports of its own")


def pytest_configure(config):
    """Lets Ctrl-C reach tests that are about it: a shell starts what runs in the background with SIGINT ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # collecting tests imports much and drops next to nothing
    if config.getoption("numprocesses", default=None):
        config.stash[SHARED] = _shared_by_processes(config)


def _shared_by_processes(config):
    """What xdist's processes of tests share as long as this one runs, which starts them: caches, and the servers' folder."""
    stack = contextlib.ExitStack()
    config.add_cleanup(stack.close)
    caches = stack.enter_context(tempfile.TemporaryDirectory(prefix="caches"))
    if config.getoption("fresh_processes") or sys.platform != "linux":
        return {"caches": caches}
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=caches):
        return {"caches": caches, "servers": stack.enter_context(servers()).folder}


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tells a process of tests what it shares."""
    node.workerinput["shared"] = node.config.stash.get(SHARED, {})


def pytest_collection_finish():
    """Keeps what imports made out of all later searches for garbage: a million objects, in each of thousands of them."""
    _keep_out_of_searches()
    gc.enable()


def pytest_runtest_logfinish():
    """So too what tests import later: each of a large library's objects would be looked at before every run on a CPU."""
    if len(sys.modules) >= _kept["modules"] + MANY_MODULES:
        _keep_out_of_searches()


def _keep_out_of_searches():
    gc.collect()
    gc.freeze()
    _kept["modules"] = len(sys.modules)


def pytest_collection_modifyitems(items):
    """Marks what takes long by the list that `make slow-tests` writes."""
    slow = frozenset((Path(__file__).parent / "slow_tests.txt").read_text(encoding="utf-8").split())
    for item in items:
        if item.nodeid.partition("[")[0].removeprefix("tests/") in slow:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _threads():
    import torch  # here, because this file is read by the process too that only starts those of the tests

    torch.set_num_threads(THREADS)


@pytest.fixture(scope="session")
def _shared(pytestconfig):
    return getattr(pytestconfig, "workerinput", {}).get("shared", {})


@pytest.fixture(autouse=True, scope="session")
def _own_caches(_shared, tmp_path_factory):
    """What operators take is asked anew by each session, by one of its processes, and not kept among the user's answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", _shared.get("caches") or str(tmp_path_factory.mktemp("caches")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _warm_start(_own_caches, _shared, pytestconfig):
    """Commands and workers that tests start need not import torch (`warm_start.py`)."""
    fresh = pytestconfig.getoption("fresh_processes", default=False)
    with contextlib.nullcontext() if fresh else warm_start(_shared.get("servers")):
        yield


@pytest.fixture(scope="session")
def pool(_warm_start):
    """One worker for all that simulate: each new one loads the models' libraries and works out every operator anew."""
    from snugfit.workers.pool import shared_pool

    yield shared_pool()
    shared_pool().close()


@pytest.fixture(autouse=True, scope="session")
def _planning_workers(_warm_start):
    """Plans of this process find the workers of the plan before, which a user's process ends; commands start their own."""
    from snugfit.planner import probe
    from snugfit.workers.pool import Pool

    class Lent(Pool):
        def close(self):
            """Stays for the next plan."""

    lent = Lent(probe.WORKERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "Pool", lambda workers: lent)
        yield
    Pool.close(lent)


@pytest.fixture(scope="module")
def two():
    """Two processes that stand for ranks, started when they are first given something to do."""
    yield from _ranks(2)


@pytest.fixture(scope="module")
def four():
    """Four of them."""
    yield from _ranks(4)


def _ranks(world):
    from rank_processes import Ranks

    ranks = Ranks(world)
    yield ranks
    ranks.end()


@pytest.fixture(scope="module")
def truth():
    """The benchmark that holds predictions against the allocator's events."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).resolve().parents[2]))
        yield importlib.import_module("benchmarks.cpu_truth")
