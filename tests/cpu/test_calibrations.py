"""What `snugfit calibrate` keeps: found for the same device only, and never read when it is damaged."""

import pytest

from snugfit import calibrations
from snugfit.errors import InputError, SnugfitWarning

IDENTITY = {"device": "cpu", "processor": "one", "torch": "2.14"}
FOUND = {"speeds": {"product_rates": [[1.0, 2.0]]}, "date": "2026-11-22"}


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    """A folder of caches of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def test_what_was_kept_is_found_for_the_same_device_only():
    assert calibrations.kept(IDENTITY) is None
    calibrations.keep(IDENTITY, FOUND)
    assert calibrations.kept(IDENTITY) == {"identity": IDENTITY, **FOUND}
    assert calibrations.kept({**IDENTITY, "torch": "2.15"}) is None
    newer = calibrations.keep(IDENTITY, {**FOUND, "date": "2026-11-23"})
    assert calibrations.kept(IDENTITY)["date"] == "2026-11-23"
    assert list(newer.parent.iterdir()) == [newer]


@pytest.mark.parametrize("change", [("2.0", "3.0"), ('"one"', '"two"'), ("{", ""), ("speeds", "speed")])
def test_an_altered_file_is_ignored_and_said_so(change):
    path = calibrations.keep(IDENTITY, FOUND)
    path.write_text(path.read_text().replace(*change))
    with pytest.warns(SnugfitWarning, match="is ignored; `snugfit calibrate`"):
        assert calibrations.kept(IDENTITY) is None


def test_a_folder_that_cannot_be_made_is_one_message(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert calibrations.kept(IDENTITY) is None
    with pytest.raises(InputError, match="XDG_CACHE_HOME"):
        calibrations.keep(IDENTITY, FOUND)
