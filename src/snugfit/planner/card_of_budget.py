"""The estimate that a plan shows: its recipe on a card as large as the budget less the margin."""

from __future__ import annotations

import dataclasses

from snugfit.fidelity import fidelity
from snugfit.nccl import among
from snugfit.planner.probe import Place, Probe
from snugfit.simulator.assembly import assemble
from snugfit.simulator.prediction import Estimate
from snugfit.techniques.shard import groups_of
from snugfit.workload import Workload


def estimate_on(place: Place, memory_bytes: int, best: Probe, workload: Workload, title: str) -> Estimate:
    """Returns what a simulated recipe needs on a card of this place that has `memory_bytes`.

    `title`: what is trained, in words.
    """
    shared = among(place.card, groups_of(best.recipe, workload.ranks))
    card = dataclasses.replace(shared, memory_bytes=memory_bytes)
    made = assemble([(card, best.recorded)], headline=best.recorded, recipe=best.recipe, title=title)
    devices = tuple(dataclasses.replace(row, step_seconds=best.seconds) for row in made.devices)
    found = fidelity(best.recipe, workload)
    return dataclasses.replace(made, step_seconds=best.seconds, devices=devices, fidelity=found)
