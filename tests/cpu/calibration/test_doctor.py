"""What `snugfit doctor` says of machines that lack something, or have what does not work."""

import json
import os

import pytest

from snugfit import machine
from snugfit.calibration import health, library_probe
from snugfit.calibration.library_probe import Tried, try_libraries
from snugfit.cli import main
from snugfit.machine import Gpu, Requirement

TORCH = {"version": "2.14.1+cpu", "cuda": None, "card": None, "processor": "Xeon, 2 threads"}
ASKED = [
    Requirement("torch", ">=2.11,<2.16", None),
    Requirement("pyyaml", ">=6", None),
    Requirement("torchvision", "", "vision"),
    Requirement("peft", ">=0.18", "text"),
]


@pytest.fixture
def healthy(monkeypatch, tmp_path):
    """A machine with everything but a GPU, without trying it; what is changed in the returned dict changes it."""
    state = {"torch": Tried("torch", facts=dict(TORCH)), "torchvision": Tried("torchvision")}
    versions = {"pyyaml": "6.0.1", "torchvision": "0.29", "peft": "0.21.2"}
    monkeypatch.setattr(machine, "requirements", lambda: ASKED)
    monkeypatch.setattr(machine, "installed", versions.get)
    monkeypatch.setattr(machine, "gpus", lambda: state.get("gpus", []))
    monkeypatch.setattr(health, "try_libraries", lambda names: {name: state[name] for name in names})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return state | {"versions": versions}, state


def found(name):
    return next(check for check in health.checks() if check.name == name)


def test_what_is_not_installed_is_missing_and_nothing_is_broken(healthy, capsys):
    healthy[0]["versions"]["peft"] = "0.17"
    peft = found("extra text")
    assert (peft.state, peft.found, peft.fix) == ("missing", "peft 0.17", "pip install 'snugfit[text]'")
    assert found("GPU").state == found("calibration").state == "missing"
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "pip install 'snugfit[text]'" in shown and "hf:" in shown and shown.startswith("snugfit ")


@pytest.mark.parametrize("name", ["extra vision", "torch", "libraries", "GPU"])
def test_what_does_not_work_is_broken(healthy, capsys, name):
    given, state = healthy
    if name == "extra vision":
        state["torchvision"] = Tried("torchvision", "RuntimeError: operator torchvision::nms does not exist")
    elif name == "torch":
        state["torch"].facts["version"] = "2.10.0"
    elif name == "libraries":
        given["versions"]["pyyaml"] = "5.4"
    else:
        state["gpus"] = [Gpu(name="NVIDIA L4", free_bytes=2**30, total_bytes=2**34)]
    check = found(name)
    assert check.state == "broken" and check.left_out and check.fix
    assert main(["doctor", "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["works"] is False
    assert [one["name"] for one in told["checks"] if one["state"] == "broken"] == [name]


def test_a_cache_that_cannot_be_written_is_said(healthy, monkeypatch):
    assert found("cache").state == "ok"
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot be written" in found("cache").found


def test_a_library_that_fails_or_dies_takes_nobody_with_it(tmp_path, monkeypatch):
    (tmp_path / "fails.py").write_text("raise RuntimeError('operator x\\ndoes not exist')")
    (tmp_path / "dies.py").write_text("import os, sys; sys.stderr.write('Illegal instruction\\n'); os._exit(3)")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    tried = try_libraries(["json", "fails", "dies", "csv"])
    assert tried["json"].problem == "" and tried["fails"].problem == "RuntimeError: operator x does not exist"
    assert tried["dies"].problem == tried["csv"].problem == "its process ended: Illegal instruction"


def test_torch_says_what_it_is():
    import torch

    facts = library_probe._tell("torch").facts
    assert facts["version"] == torch.__version__ and facts["processor"]
