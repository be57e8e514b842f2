"""Draws the rooms of the package from its imports, for docs/architecture.md.

An arrow is an import at run time; one that follows from others is left out, and the ground floor, which all use, too.

    python -m benchmarks.rooms        (prints it; `make docs` puts it into docs/architecture.md)
"""

from __future__ import annotations

import grimp

GROUND = "ground floor"


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


def diagram() -> str:
    """Returns the rooms as a Mermaid graph."""
    # The ground floor names the techniques, of whose declarations it is made; they load nothing that it does not.
    uses = {name: others - {GROUND} for name, others in rooms().items() if name != GROUND}
    lines = ["```mermaid", "graph TD"]
    for name in sorted(uses):
        for other in sorted(uses[name]):
            if not any(other in _below(uses, between) for between in uses[name] - {other}):
                lines.append(f"    {name} --> {other}")
    return "\n".join([*lines, "```"])


def _below(uses: dict[str, set[str]], name: str) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = uses[waiting.pop()] - found
        found |= new
        waiting += new
    return found


if __name__ == "__main__":
    print(diagram())
