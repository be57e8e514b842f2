"""The diagram of the rooms in docs/architecture.md is that of today's imports."""

from pathlib import Path

from benchmarks.rooms import diagram, rooms

ARCHITECTURE = Path(__file__).parents[3] / "docs" / "architecture.md"


def test_the_page_shows_the_rooms_as_they_are():
    assert diagram() in ARCHITECTURE.read_text(encoding="utf-8"), "run make docs"


def test_what_reads_recordings_does_not_need_the_simulator():
    found = rooms()
    assert found["recording"] == {"ground floor"}
    assert not {"simulator", "workers", "recorder"} & (found["measure"] | found["report"])
