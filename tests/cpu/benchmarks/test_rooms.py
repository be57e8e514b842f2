"""The picture of the rooms in docs/architecture.md is that of today's imports."""

from pathlib import Path

from benchmarks.rooms import arrows, diagram, placed, rooms

PICTURE = Path(__file__).parents[3] / "docs" / "figures" / "rooms.svg"


def test_the_page_shows_the_rooms_as_they_are():
    assert diagram() == PICTURE.read_text(encoding="utf-8"), "run make docs"


def test_every_arrow_is_drawn_from_row_to_row():
    uses = arrows()
    rows, pieces = placed(uses)
    assert sorted(name for row in rows for name, other in row if name == other) == sorted(uses)
    ends = {}
    for number, row in enumerate(rows[1:]):
        for before, after in pieces:
            if before in rows[number] and after in row:
                ends.setdefault(before, set()).add(after)
    for name, others in uses.items():
        for other in others:
            long = (other, other) not in ends[name, name]
            assert not long or ((name, other) in ends[name, name] and (other, other) in ends[name, other])


def test_what_reads_recordings_does_not_need_the_simulator():
    found = rooms()
    assert found["recording"] == {"ground floor"}
    assert not {"simulator", "workers", "recorder"} & (found["measure"] | found["report"])
