"""Why a plan is as it is: a sentence for every field of the recipe, with numbers from simulations that were made.

What a technique saves and costs is read off the plan itself and the plan with that one field changed, which was simulated
too (`closeness.py`). Where changing it takes another field along, the sentence names that one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator

from snugfit.fidelity import fidelity
from snugfit.fields import as_typed, field_infos
from snugfit.planner.closeness import turned_back
from snugfit.planner.probe import Probe
from snugfit.planner.space import AT_BUILD, BY_BLOCK, NEVER, SIZE, WAY_FIELDS, Space
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
    """Returns field -> a sentence that says why the field is as it is."""
    constraints, plain = space.constraints, Recipe()
    found: dict[str, str] = {}
    for name in field_infos(Recipe):
        value = getattr(best.recipe, name)
        if name in constraints.pins:
            found[name] = f"pinned to {as_typed(value)}."
        elif name in constraints.forbidden:
            found[name] = "off: forbidden."
        elif name in constraints.needed:
            found[name] = f"{_in_words(best, name)}: without it, {constraints.needed_as.removesuffix('.')}."
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
    """Says who builds the model where several processes share it out, and the host memory that takes."""
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
    row, value = _OWNERS[name], getattr(best.recipe, name)
    if row.follows is not None:
        return f"it follows from the rest of the recipe; {row.because}."
    back = turned_back(space, best.recipe, name)
    if back is None:
        whole = next((one for one in space.choices() if len(one) > 1 and one.get(name) == value), {})
        partners = [f"{other}={as_typed(what)}" for other, what in whole.items() if other != name]
        belongs = f"a plan does not take {', '.join(partners)} without it" if partners else row.because
        return f"{belongs or 'without it the step cannot be done'}."
    seen = space.laboratory.probes.get(back)
    if seen is None:
        refusal = space.laboratory.refusals.get(back)
        return (refusal.reason.rstrip(".") if refusal else row.because or "without it the step takes longer") + "."
    along = [other for other in _differing(back, best.recipe, (name,)) if _OWNERS[other].follows is None]
    text = f"without {' and '.join(['it', *along])} a step {_change(best, seen)}"
    if seen.need_bytes > capacity_bytes:
        text += ", which does not fit"
    if row.by_block is not None and row.by_block.in_words:
        everything = space.laboratory.probes.get(best.recipe.replace(**row.by_block.everywhere))
        if everything is not None and everything.seconds > best.seconds:
            text += f"; {row.by_block.in_words} would take {format_seconds(everything.seconds - best.seconds)} more"
    if name in WAY_FIELDS:
        plain = getattr(Recipe(), name)
        without = min(probe.need_bytes for probe in space.usable() if getattr(probe.recipe, name) == plain)
        if without > capacity_bytes:
            text += f"; nothing that was simulated without it needs less than {format_bytes(without)}"
    return text + "."


def _change(best: Probe, other: Probe) -> str:
    """The difference of a step by another recipe to the plan's, in words."""
    more, slower = other.need_bytes - best.need_bytes, other.seconds - best.seconds
    memory = f"takes {format_bytes(abs(more))} {'more' if more > 0 else 'less'}" if more else "takes as much memory"
    if abs(slower) < 1e-9:
        return f"{memory} and as long"
    return f"{memory} and is {format_seconds(abs(slower))} {'slower' if slower > 0 else 'faster'}"


def _why_off(space: Space, best: Probe, name: str, capacity_bytes: int) -> str:
    if name == SIZE:
        trials: list[Changes] = [space.size_change(size) for size in space.sizes()[1:4]]
        if not trials and space.batch is not None and space.batch > 1:
            trials = [{SIZE: space.batch // 2}]
    else:
        trials = _TRIALS.get(name, [])
    if _OWNERS[name].nothing_to_switch and name not in best.recorded.switchable:
        return _OWNERS[name].nothing_to_switch + "."
    beside = [probe for probe in space.usable() if _differs_in(probe.recipe, best.recipe, name)]
    if beside:
        other = min(beside, key=lambda probe: (probe.seconds, probe.need_bytes))
        saved, cost = best.need_bytes - other.need_bytes, other.seconds - best.seconds
        fits = "it is not needed: " if best.need_bytes + max(saved, 0) <= capacity_bytes and cost >= 0 else ""
        what = as_typed(getattr(other.recipe, name))
        given = "" if what == "True" else f"{name}={what} " if len(what) < 40 else "on some blocks it "
        return f"{fits}{given or 'it '}{_trade(saved, cost)}{_instead(best, name)}."
    for change in trials:
        refusal = _refusal(space, best, name, change)
        if refusal is not None:
            return refusal
    return (_OWNERS[name].because or f"nothing that was simulated is better with it{_instead(best, name)}") + "."


def _differs_in(recipe: Recipe, other: Recipe, name: str) -> bool:
    """Whether two recipes differ in a field and in what follows from it, and in nothing else."""
    names = [one for one in _differing(recipe, other) if _OWNERS[one].follows is None]
    return names == [name]


def _instead(best: Probe, name: str) -> str:
    """What the plan does instead of a technique that is off."""
    instead = _OWNERS[name].instead
    found = instead(best.recipe, _in_words(best, BY_BLOCK["again"][0])) if instead is not None else ""
    return found and f"; {found}"


def _refusal(space: Space, best: Probe, name: str, change: Changes) -> str | None:
    """Why a change to the plan is not allowed or not possible."""
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


def _differing(one: Recipe, other: Recipe, without: Collection[str] = ()) -> list[str]:
    """The fields in which two recipes differ, without some."""
    return [name for name in field_infos(Recipe) if name not in without and getattr(one, name) != getattr(other, name)]


def _trade(saved_bytes: int, cost_seconds: float) -> str:
    """What a technique would save and cost, in words."""
    memory = f"would {'save' if saved_bytes > 0 else 'take'} {format_bytes(abs(saved_bytes))}"
    memory = "would save no memory" if saved_bytes == 0 else memory if saved_bytes > 0 else f"{memory} more"
    if abs(cost_seconds) < 1e-9:
        return f"{memory} and cost no time"
    if cost_seconds > 0:
        return f"{memory} for {format_seconds(cost_seconds)} a step"
    return f"{memory} and make a step {format_seconds(-cost_seconds)} faster"


def _settings(recipe: Recipe, names: Iterable[str], many: str) -> Iterator[str]:
    """Fields as they are typed; a long list of blocks becomes a phrase in which {} is their number."""
    for name in names:
        value = getattr(recipe, name)
        text = as_typed(value)
        yield f"{name}={text if len(text) < 30 else many.format(len(value))}"


def neighbours(usable: list[Probe], best: Probe, budget_of: Callable[[int], int]) -> tuple[str, ...]:
    """Returns at most two sentences on what a little more or less budget would change; `budget_of`: need -> budget."""
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
