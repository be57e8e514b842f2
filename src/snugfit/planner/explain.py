"""Why a plan is as it is: a sentence for every field of the recipe, with numbers from simulations that were made.

What a technique saves and costs is read off two simulated recipes that differ in nothing else; of several such pairs the
one nearest to the plan is taken, and the sentence says where it was seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from snugfit.fidelity import fidelity
from snugfit.fields import as_typed, field_infos
from snugfit.planner.probe import Probe
from snugfit.planner.space import AT_BUILD, BY_BLOCK, NEVER, POINTS, SIZE, WAY_FIELDS, Space
from snugfit.recipe import Recipe
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.declaration import LEVELS, Changes
from snugfit.units import format_bytes, format_seconds

_OWNERS = {field: row for row in reversed(TECHNIQUES) for field in row.fields}
"""Field -> the technique that it belongs to."""
_TRIALS: dict[str, list[Changes]] = {}
"""What a field that is off would be, to ask why it is off: what costs least fidelity first."""
for _row in sorted(TECHNIQUES, key=lambda row: LEVELS.index(row.level)):
    _TRIALS.setdefault(_row.fields[0], []).extend(_row.all_trials)


def reasons(space: Space, best: Probe, capacity_bytes: int) -> dict[str, str]:
    """Returns why each field of the recipe is as it is.

    Args:
        space: The recipes there are, and what was simulated.
        best: The plan's recipe.
        capacity_bytes: Memory there is.

    Returns:
        Field -> sentence.
    """
    constraints, plain = space.constraints, Recipe()
    found: dict[str, str] = {}
    for name in field_infos(Recipe):
        value = getattr(best.recipe, name)
        if name in constraints.pins:
            found[name] = f"pinned to {as_typed(value)}."
        elif name in constraints.forbidden:
            found[name] = "off: forbidden."
        elif name in constraints.needed:
            found[name] = f"{_in_words(best, name)}: without it, {constraints.needed_as}"
        elif value != getattr(plain, name):
            found[name] = f"{_in_words(best, name)}: {_why_on(space, best, name, capacity_bytes)}"
        elif name in NEVER:
            found[name] = f"off: {NEVER[name]}."
        elif _OWNERS[name].ways is not None and space.workload.ranks == 1:
            found[name] = f"off: {_OWNERS[name].no_ways}."
        elif name in AT_BUILD.fields and space.workload.gpus > 1:
            found[name] = f"off: {_built_by_each(space, best)}."
        else:
            found[name] = f"off: {_why_off(space, best, name, capacity_bytes)}"
    return found


def _in_words(best: Probe, name: str) -> str:
    value = getattr(best.recipe, name)
    blocks, by = len(best.recorded.block_names), _OWNERS[name].by_block
    count = None if by is None or not blocks else by.count(value, blocks)
    if count is not None:
        return f"all {blocks} blocks" if count == blocks else f"{count} of {blocks} blocks"
    return "on" if value is True else as_typed(value)


def _built_by_each(space: Space, best: Probe) -> str:
    """What it takes that a model is built of which every process of a machine then keeps a share."""
    who = (
        "the first process builds the model on the host and sends it to the others unit by unit"
        if best.recorded.one_builds
        else f"each of the {space.workload.gpus} processes of a machine has the whole model on the host"
    )
    return (
        f"{who}; a machine takes {format_bytes(best.host_bytes)} of host memory at the most. Built on a device, each GPU "
        "would hold all of it"
    )


def _why_on(space: Space, best: Probe, name: str, capacity_bytes: int) -> str:
    plain = getattr(Recipe(), name)
    off = _nearest(space, best, name, lambda value: value == plain)
    if off is None:
        return (_OWNERS[name].because or "without it the step does not fit, or takes longer") + "."
    text = _trade(off[0].need_bytes - off[1].need_bytes, off[1].seconds - off[0].seconds, done=True)
    by = _OWNERS[name].by_block
    if by is not None and by.in_words and getattr(best.recipe, name) not in [one.get(name) for one in POINTS.values()]:
        everything = _nearest(space, best, name, lambda value: value == by.everywhere[name])
        if everything is not None and everything[1].seconds > best.seconds:
            more = format_seconds(everything[1].seconds - best.seconds)
            text += f"; {by.in_words} would take {more} more"
    text += _seen(off[0], best, name)
    if name in WAY_FIELDS:
        without = min(probe.need_bytes for probe in space.usable() if getattr(probe.recipe, name) == plain)
        if without > capacity_bytes:
            text += f"; nothing that was simulated without it needs less than {format_bytes(without)}"
    return text + "."


def _why_off(space: Space, best: Probe, name: str, capacity_bytes: int) -> str:
    if name == SIZE:
        trials: list[Changes] = [space.size_change(size) for size in space.sizes()[1:4]]
        if not trials and space.batch is not None and space.batch > 1:
            trials = [{SIZE: space.batch // 2}]
    else:
        trials = _TRIALS.get(name, [])
    if _OWNERS[name].nothing_to_switch and name not in best.recorded.switchable:
        return _OWNERS[name].nothing_to_switch + "."
    plain = getattr(Recipe(), name)
    pair = _nearest(space, best, name, lambda value: value != plain)
    if pair is not None:
        saved, cost = pair[1].need_bytes - pair[0].need_bytes, pair[0].seconds - pair[1].seconds
        fits = "it is not needed: " if best.need_bytes + max(saved, 0) <= capacity_bytes and cost >= 0 else ""
        what = as_typed(getattr(pair[0].recipe, name))
        given = "" if what == "True" else f"{name}={what} " if len(what) < 40 else "on some blocks it "
        text = _trade(saved, cost, done=False)
        return f"{fits}{given or 'it '}{text}{_seen(pair[1], best, name)}{_instead(best, name)}."
    for change in trials:
        refusal = _refusal(space, best, name, change)
        if refusal is not None:
            return refusal
    return (_OWNERS[name].because or "nothing that was simulated is better with it") + "."


def _instead(best: Probe, name: str) -> str:
    """What the plan does in place of a technique that is off."""
    instead = _OWNERS[name].instead
    found = instead(best.recipe, _in_words(best, BY_BLOCK["again"][0])) if instead is not None else ""
    return found and f"; {found}"


def _refusal(space: Space, best: Probe, name: str, change: Changes) -> str | None:
    """Why a change to the plan is not allowed, or cannot be carried out."""
    made = space.recipe(best.recipe.to_mapping(), change)
    if isinstance(made, str):
        wider = dataclasses.replace(space.constraints, allow=frozenset(LEVELS))
        other = dataclasses.replace(space, constraints=wider).recipe(best.recipe.to_mapping(), change)
        found = fidelity(other, space.workload).reasons.get(name) if isinstance(other, Recipe) else None
        if found is not None:
            level, reason = found
            return f"{reason.rstrip('.')}: {level}, which is not allowed (--allow {level})."
        return made
    for recipe, refusal in space.laboratory.refusals.items():
        about_it = not refusal.fields or bool(set(change) & set(refusal.fields))
        if about_it and all(getattr(recipe, key) == value for key, value in change.items()):
            return refusal.reason
    return None


def _nearest(space: Space, best: Probe, name: str, wanted: Callable[[Any], bool]) -> tuple[Probe, Probe] | None:
    """Two simulated recipes that differ in one field only: (with a wanted value, with the plan's), nearest to the plan.

    For a field that is on, the first is the one without it.
    """
    companions = {name, *_OWNERS[name].goes_with}
    others = [field for field in field_infos(Recipe) if field not in companions]
    by_rest: dict[tuple[Any, ...], list[Probe]] = {}
    for probe in space.laboratory.probes.values():
        by_rest.setdefault(tuple(getattr(probe.recipe, field) for field in others), []).append(probe)
    value = getattr(best.recipe, name)
    found: list[tuple[int, float, int, tuple[Probe, Probe]]] = []
    for rest in by_rest.values():
        here = [probe for probe in rest if getattr(probe.recipe, name) == value]
        there = [probe for probe in rest if wanted(getattr(probe.recipe, name))]
        for one in here:
            for other in there:
                far = len(_differing(one.recipe, best.recipe, companions))
                found.append((far, other.seconds, len(found), (other, one)))
    return min(found)[3] if found else None


def _differing(one: Recipe, other: Recipe, without: Collection[str] = ()) -> list[str]:
    """The fields in which two recipes differ, some not looked at."""
    return [name for name in field_infos(Recipe) if name not in without and getattr(one, name) != getattr(other, name)]


def _trade(saved_bytes: int, cost_seconds: float, *, done: bool) -> str:
    """What a technique saves and costs, in words."""
    memory = (
        f"{'saves' if done else 'would save'} {format_bytes(saved_bytes)}"
        if saved_bytes > 0
        else "saves no memory"
        if saved_bytes == 0
        else f"{'takes' if done else 'would take'} {format_bytes(-saved_bytes)} more"
    )
    if abs(cost_seconds) < 1e-9:
        return f"{memory} and costs no time"
    if cost_seconds > 0:
        return f"{memory} for {format_seconds(cost_seconds)} a step"
    return f"{memory} and is {format_seconds(-cost_seconds)} a step faster"


def _seen(probe: Probe, best: Probe, name: str) -> str:
    """Where a pair was seen, when that is not beside the plan itself."""
    names = _differing(probe.recipe, best.recipe, (name,))
    return f" (seen at {', '.join(_settings(probe.recipe, names[:3], 'some blocks'))})" if names else ""


def _settings(recipe: Recipe, names: Iterable[str], many: str) -> Iterator[str]:
    """Fields as they are typed; long lists of blocks in other words, in which {} is how many they are."""
    for name in names:
        value = getattr(recipe, name)
        text = as_typed(value)
        yield f"{name}={text if len(text) < 30 else many.format(len(value))}"


def neighbours(usable: list[Probe], best: Probe, budget_of: Callable[[int], int]) -> tuple[str, ...]:
    """Returns what a little more or less budget would change.

    Args:
        usable: Simulated recipes that are allowed.
        best: The plan's.
        budget_of: Need in bytes -> smallest budget.

    Returns:
        At most two sentences.
    """
    lines = []
    faster = [probe for probe in usable if probe.seconds < 0.998 * best.seconds]
    if faster:
        more = min(faster, key=lambda probe: (probe.need_bytes, probe.seconds))
        lines.append(
            f"from {format_bytes(budget_of(more.need_bytes))} on a step takes {format_seconds(more.seconds)} "
            f"({_difference(more.recipe, best.recipe)})"
        )
    else:
        lines.append("more budget makes no simulated step faster")
    lines.append(f"this recipe would still fit {format_bytes(budget_of(best.need_bytes))}")
    less = [probe for probe in usable if probe.need_bytes < 0.995 * best.need_bytes]
    if less:
        next_one = min(less, key=lambda probe: (probe.seconds, probe.need_bytes))
        lines.append(
            f"below that a step takes {format_seconds(next_one.seconds)} down to "
            f"{format_bytes(budget_of(next_one.need_bytes))} ({_difference(next_one.recipe, best.recipe)})"
        )
    return tuple(lines)


def _difference(recipe: Recipe, other: Recipe) -> str:
    return ", ".join(_settings(recipe, _differing(recipe, other), "{} blocks"))
