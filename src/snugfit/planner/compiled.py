"""The recipe that was found, compiled where that is pinned: compiling changes what it needs, and is simulated last."""

from __future__ import annotations

from snugfit.planner.probe import Probe
from snugfit.planner.search import Search
from snugfit.planner.smallest import MOST_COMPILED, Smallest


def best_as_it_runs(search: Search, capacity_bytes: int) -> Probe | None:
    """Returns the best recipe as it runs; if it then needs too much, one that needs less; None where nothing fits."""
    room = capacity_bytes
    for _ in range(MOST_COMPILED):
        best = search.best(room)
        if best is None:
            break
        real = search.simulations.as_it_runs(best)
        if real.need_bytes <= capacity_bytes:
            return real
        room = int(best.need_bytes * capacity_bytes / real.need_bytes)  # less each time
        search.run(room)
    least = Smallest(search.space).find_as_it_runs(search.space.constraints.widest)
    return least if least is not None and least.need_bytes <= capacity_bytes else None
