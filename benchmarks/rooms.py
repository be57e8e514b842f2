"""Draws the rooms of the package from its imports, for docs/architecture.md.

An arrow is an import at run time; one that follows from others is left out, and the ground floor, which all use, too. A room
stands under all that use it; a long arrow goes through a place of its own in each row between (the layers of Sugiyama).

    python -m benchmarks.rooms        (prints it; `make docs` writes docs/figures/rooms.svg)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import grimp

GROUND = "ground floor"
WIDTH, BOX, HIGH, ROW, GAP, MARGIN = 760, 112, 28, 66, 16, 16
"""Pixels: of the picture, of a box, from row to row, between boxes, around all."""
SWEEPS = 12
"""How often the rows are ordered, from above and from below in turn."""
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="Rooms and uses">
<style>
  text {{ font: 13px system-ui, sans-serif; text-anchor: middle; fill: #1d2129; }}
  rect {{ fill: #e8eefc; stroke: #3d5a99; }} path {{ fill: none; stroke: #6b7280; }}
  .page {{ fill: #ffffff; stroke: none; }}
  @media (prefers-color-scheme: dark) {{
    text {{ fill: #e6e8ec; }} rect {{ fill: #26314a; stroke: #7f9be0; }} path {{ stroke: #9aa3b2; }}
    .page {{ fill: #1b1e26; }}
  }}
</style>
<marker id="end" markerWidth="8" markerHeight="8" refX="7" refY="3.5" orient="auto"><path d="M 0 0 L 7 3.5 L 0 7"/></marker>
<rect class="page" width="{width}" height="{height}" rx="6"/>"""


def rooms() -> dict[str, set[str]]:
    """Returns each room with the rooms that it imports; files beside the rooms are the ground floor."""
    graph = grimp.build_graph("snugfit", exclude_type_checking_imports=True, cache_dir=None)
    folders = {name for name in graph.find_children("snugfit") if graph.find_children(name)}

    def room(module: str) -> str:
        top = ".".join(module.split(".")[:2])
        return top.partition(".")[2] if top in folders else GROUND

    found: dict[str, set[str]] = {room(module): set() for module in graph.modules}
    for module in graph.modules:
        # The package itself and __main__ name everything for those who import it.
        if module in ("snugfit", "snugfit.__main__"):
            continue
        for imported in graph.find_modules_directly_imported_by(module):
            if room(imported) != room(module):
                found[room(module)].add(room(imported))
    return found


def arrows() -> dict[str, set[str]]:
    """Returns each room with those that it uses and that no other room which it uses does."""
    # The ground floor names the techniques, of whose declarations it is made; they load nothing that it does not.
    uses = {name: others - {GROUND} for name, others in rooms().items() if name != GROUND}
    return {
        name: {one for one in others if not any(one in _below(uses, between) for between in others - {one})}
        for name, others in uses.items()
    }


def _below(uses: dict[str, set[str]], name: str) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = uses[waiting.pop()] - found
        found |= new
        waiting += new
    return found


Place = tuple[str, str]
"""A room, twice its name; or where the arrow between two rooms goes through a row."""


def placed(uses: Mapping[str, set[str]]) -> tuple[list[list[Place]], list[tuple[Place, Place]]]:
    """Returns the rows from the top, and the pieces of arrows from each row to the next."""
    floor = {name: max((len(path) for path in _upwards(uses, name)), default=0) for name in uses}
    rows: list[list[Place]] = [[] for _ in range(1 + max(floor.values()))]
    for name in sorted(uses):
        rows[floor[name]].append((name, name))
    pieces: dict[tuple[Place, Place], None] = {}
    for name in sorted(uses):
        for other in sorted(uses[name]):
            between = [(name, other)] * (floor[other] - floor[name] - 1)
            for number, place in enumerate(between, start=floor[name] + 1):
                rows[number].append(place)
            steps = [(name, name), *between, (other, other)]
            pieces |= dict.fromkeys(itertools.pairwise(steps))
    for sweep in range(SWEEPS):  # every place goes where its neighbours in the row before are, on average
        down = sweep % 2 == 0
        for number in range(1, len(rows)) if down else range(len(rows) - 2, -1, -1):
            before = _centres(rows[number - 1 if down else number + 1])
            ends = [(a, b) if down else (b, a) for a, b in pieces]

            def wanted(place: Place, before: Mapping[Place, float] = before, ends: list[Any] = ends) -> float:
                found = [before[near] for near, far in ends if far == place and near in before]
                return sum(found) / len(found) if found else WIDTH / 2

            rows[number].sort(key=wanted)
    return rows, list(pieces)


def _upwards(uses: Mapping[str, set[str]], name: str) -> Iterator[list[str]]:
    """Every way from a room up to one that nobody uses."""
    for user in (one for one in uses if name in uses[one]):
        yield [user]
        for way in _upwards(uses, user):
            yield [user, *way]


def _centres(row: list[Place]) -> dict[Place, float]:
    """Where the places of a row stand: those of arrows need less room."""
    widths = [BOX + GAP if name == other else GAP for name, other in row]
    at, centres = (WIDTH - sum(widths)) / 2, {}
    for place, width in zip(row, widths, strict=True):
        centres[place] = at + width / 2
        at += width
    return centres


def diagram() -> str:
    """Returns the rooms as a picture (SVG); it brings its own background, for pages are light or dark."""
    rows, pieces = placed(arrows())
    centre, top = {}, {}
    lines = []
    for number, row in enumerate(rows):
        for place, x in _centres(row).items():
            centre[number, place], top[place, number] = x, MARGIN + number * ROW
    for number, row in enumerate(rows[1:]):
        for a, b in pieces:
            if a in rows[number] and b in row:
                x, y = centre[number, a], top[a, number] + HIGH
                to, end = centre[number + 1, b], top[b, number + 1]
                marker = ' marker-end="url(#end)"' if b[0] == b[1] else ""
                bend = f"C {x:.0f} {y + 22:.0f} {to:.0f} {end - 22:.0f} {to:.0f} {end:.0f}"
                lines.append(f'<path d="M {x:.0f} {y:.0f} {bend}"{marker}/>')
                if a[0] != a[1]:
                    lines.append(f'<path d="M {x:.0f} {y - HIGH:.0f} V {y:.0f}"/>')
    for number, row in enumerate(rows):
        for name, other in row:
            if name == other:
                x, y = centre[number, (name, name)], top[(name, name), number]
                lines.append(f'<rect x="{x - BOX / 2:.0f}" y="{y}" width="{BOX}" height="{HIGH}" rx="4"/>')
                lines.append(f'<text x="{x:.0f}" y="{y + 19}">{name}</text>')
    height = 2 * MARGIN + (len(rows) - 1) * ROW + HIGH
    return "\n".join([HEAD.format(width=WIDTH, height=height), *lines, "</svg>\n"])


if __name__ == "__main__":
    print(diagram())
