"""What is found out about a machine without torch: its GPUs by the driver, versions by what installations say."""

import os

import pytest

from snugfit import calibrations, machine
from snugfit.units import MIB


def driver(folder, monkeypatch, says, code=0):
    """Puts a driver's command in front that says something."""
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {code}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_the_driver_names_cards_and_what_is_free(tmp_path, monkeypatch):
    driver(tmp_path, monkeypatch, "NVIDIA H100 80GB HBM3, 80995, 81559\nNVIDIA GB10, [N/A], [N/A]")
    first, second = machine.gpus()
    assert (first.name, first.free_bytes, first.total_bytes) == ("NVIDIA H100 80GB HBM3", 80995 * MIB, 81559 * MIB)
    assert (second.name, second.free_bytes) == ("NVIDIA GB10", None)


@pytest.mark.parametrize(("says", "code"), [("NVIDIA-SMI has failed: no driver, is it on?, sorry", 9), ("", 0)])
def test_a_driver_that_fails_names_none(tmp_path, monkeypatch, says, code):
    driver(tmp_path, monkeypatch, says, code)
    assert machine.gpus() == []


@pytest.mark.parametrize(
    ("version", "versions", "goes"),
    [
        ("2.11.0", ">=2.11,<2.16", True),
        ("2.15.3+cu130", ">=2.11,<2.16", True),
        ("2.10.1", ">=2.11,<2.16", False),
        ("2.16.0a0+git1", ">=2.11,<2.16", False),
        ("3", ">=3", True),
        ("anything", "", True),
    ],
)
def test_versions_are_compared_as_numbers(version, versions, goes):
    assert machine.within(version, versions) is goes


def test_requirements_are_those_of_the_installation():
    asked = {(one.library, one.extra): one for one in machine.requirements()}
    assert asked["torch", None].versions.startswith(">=2.11,<2.") and asked["torch", None].met
    assert ("transformers", "text") in asked and ("numpy", None) in asked
    assert machine.installed("no-such-library") is None


def test_calibrations_say_what_they_are_of(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert calibrations.identities() == []
    card = {"device": "card", "name": "NVIDIA H100 80GB HBM3", "torch": "2.14.1"}
    kept = calibrations.keep(card, {"speeds": {}, "date": "2026-11-26"})
    kept.with_name("older.json").write_text(kept.read_text())
    kept.with_name("broken.json").write_text("{")
    assert calibrations.identities() == [card]
