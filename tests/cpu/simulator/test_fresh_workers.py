"""Each run of a script has a process of its own, which finds the script's libraries imported."""

import importlib
import sys
from contextlib import closing

import pytest

from snugfit import CannotSimulateError
from snugfit.fake_device.personality import Personality
from snugfit.simulator.fresh_workers import FreshWorkers
from snugfit.simulator.own_script import import_all
from snugfit.workers.forked import FORKS

pytestmark = pytest.mark.skipif(not FORKS, reason="without copies of workers there is nothing that they share")
LIBRARY = "highspy"


def _import(names):
    for name in names:
        importlib.import_module(name)


def _has(name, change=None):
    found = name in sys.modules, getattr(sys, "changed", None)
    sys.changed = change
    return found


def test_copies_find_what_their_worker_has_imported_and_nothing_else():
    with closing(FreshWorkers(1)) as workers:
        assert workers.call(_has, LIBRARY) == (False, None)
        workers.libraries = [LIBRARY], _import
        assert workers.call(_has, LIBRARY, "by the first") == (True, None)
        assert workers.call(_has, LIBRARY) == (True, None)


def test_a_library_that_does_not_import_alone_is_said(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text("raise RuntimeError('only from the script')")
    monkeypatch.syspath_prepend(tmp_path)
    with closing(FreshWorkers(1)) as workers:
        workers.libraries = ["half_there"], _import_as_script
        with pytest.raises(CannotSimulateError, match="only from the script"):
            workers.call(_has, LIBRARY)


def _import_as_script(names):
    import_all(Personality(capability=(8, 9)), names)
