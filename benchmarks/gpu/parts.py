"""All parts, the most informative first. Imports no torch."""

from __future__ import annotations

from benchmarks.gpu import accuracy, clock, faults, histories, ladder, overhead, plans, scripts, traces

PARTS = {
    part.name: part
    for part in (
        scripts.PART,
        accuracy.PART,
        traces.PART,
        histories.PART,
        ladder.PART,
        clock.PART,
        faults.PART,
        plans.PART,
        overhead.PART,
    )
}
