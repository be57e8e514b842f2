"""Which blocks to treat how: a knapsack, solved by HiGHS without a word on standard output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Item = tuple[int, int]
"""What may be chosen: number of a treatment, index of a block."""
_UNIT_BYTES = 2**20
"""Bytes are given to the solver in MiB, near which its tolerances lie."""
_FEASIBLE = 2
"""What HiGHS calls a solution that keeps to all constraints."""


def cheapest(
    costs: Sequence[Sequence[float]], limits: Iterable[tuple[Mapping[Item, float], float]]
) -> set[Item] | None:
    """Returns the choice that costs least and keeps to every limit; None where none does.

    `costs`: for each treatment, what it costs on each block, at most about 1; a block gets one treatment at most.
    `limits`: the bytes that each item adds somewhere, and the bytes of room that is left there.
    """
    solver = silent_solver()
    for option, value in (("mip_rel_gap", 5e-3), ("time_limit", 0.3)):
        solver.setOptionValue(option, value)
    taken = [[solver.addBinary(obj=cost) for cost in of_blocks] for of_blocks in costs]
    for of_block in zip(*taken, strict=True):
        if len(of_block) > 1:
            solver.addConstr(solver.qsum(of_block) <= 1)
    for weights, room in limits:
        if weights:
            terms = [taken[number][block] * (weight / _UNIT_BYTES) for (number, block), weight in weights.items()]
            solver.addConstr(solver.qsum(terms) <= room / _UNIT_BYTES)
        elif room < 0:
            return None
    solver.run()
    if solver.getInfo().primal_solution_status != _FEASIBLE:
        return None
    values = solver.getSolution().col_value
    return {
        (number, block)
        for number, of_blocks in enumerate(taken)
        for block, chosen in enumerate(of_blocks)
        if values[chosen.index] > 0.5
    }


def silent_solver() -> Any:
    """A new solver for one thread, silent from the start.

    From 1.16 on, HiGHS writes its name and licence to standard output, where `--json` belongs, as soon as callbacks are
    enabled. Its constructor does that, before anybody holds a solver that could be told to be silent.
    """
    import highspy

    class Silent(highspy.Highs):
        def enableCallbacks(self) -> None:  # the name is HiGHS's
            self.silent()
            super().enableCallbacks()  # type: ignore[no-untyped-call]

    solver = Silent()  # type: ignore[no-untyped-call]
    solver.setOptionValue("threads", 1)
    return solver
