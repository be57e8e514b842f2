"""Why a plan is as it is: a sentence for every field of the recipe, with numbers of the plan with that one field changed.

That recipe was simulated or is composed (`one_change.py`), and the sentence says which; where a field that is on takes
another one along as it is turned back (`closeness.py`), the sentence names that one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from snugfit.errors import argument
from snugfit.fidelity import fidelity
from snugfit.fields import as_typed, field_infos
from snugfit.planner.budgets import BudgetPoint, Budgets
from snugfit.planner.closeness import NEARLY, turned_back
from snugfit.planner.one_change import Changed, changed, differing
from snugfit.planner.probe import Probe
from snugfit.planner.search import Search
from snugfit.planner.space import BY_BLOCK, EVERYWHERE, SIZE, Space, choices_of
from snugfit.recipe import Recipe
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.levels import LEVELS, Level
from snugfit.techniques.planning import UNCALLED, Changes, Planned
from snugfit.units import format_bytes, format_seconds

_OWNERS = {field: row for row in reversed(TECHNIQUES) for field in row.fields}
"""Field -> the technique that it belongs to."""
_FIRST: dict[str, dict[Level, Changes]] = {}
"""Field -> the first choice of each fidelity, to ask why it is off."""
for _row in TECHNIQUES:
    for _choice in _row.planning.choices:
        _FIRST.setdefault(_row.fields[0], {}).setdefault(_choice.level, _choice.changes)


_SAME = 0.002
"""Part of what a plan needs below which a composed difference is none."""


def reasons(search: Search, best: Probe, capacity_bytes: int) -> dict[str, str]:
    """Returns field -> a sentence that says why the field is as it is."""
    space, plain = search.space, Recipe()
    constraints = space.constraints
    found: dict[str, str] = {}
    for name in field_infos(Recipe):
        value = getattr(best.recipe, name)
        if name in constraints.pins:
            by = _OWNERS[name].planning.by_block
            idle = by is not None and isinstance(value, str) and by.when_called(value) and not space.calls_blocks
            found[name] = f"pinned to {as_typed(value)}{f'; {UNCALLED}' if idle else ''}."
        elif name in constraints.forbidden:
            found[name] = "off: forbidden."
        elif name in constraints.needed:
            found[name] = f"{_in_words(best, name)}: without it, {constraints.needed_as.removesuffix('.')}."
        elif value != getattr(plain, name):
            found[name] = f"{_in_words(best, name)}: {_why_on(search, best, name, capacity_bytes)}"
        else:
            found[name] = f"off: {_why_off(search, best, name, capacity_bytes)}"
    return found


def _in_words(best: Probe, name: str) -> str:
    value = getattr(best.recipe, name)
    blocks, by = len(best.recorded.block_names), _OWNERS[name].planning.by_block
    count = None if by is None or not blocks else by.count(value, blocks)
    if count is not None:
        return f"all {blocks} blocks" if count == blocks else f"{count} of {blocks} blocks"
    return "on" if value is True else as_typed(value)


def _why_on(search: Search, best: Probe, name: str, capacity_bytes: int) -> str:
    space, planning, value = search.space, _OWNERS[name].planning, getattr(best.recipe, name)
    if planning.follows is not None:
        return f"it follows from the rest of the recipe; {planning.because}."
    back = turned_back(space, best.recipe, name)
    if back is None:
        whole = next((one for one in choices_of("passes", "update") if len(one) > 1 and one.get(name) == value), {})
        partners = [f"{other}={as_typed(what)}" for other, what in whole.items() if other != name]
        belongs = f"a plan does not take {', '.join(partners)} without it" if partners else planning.because
        return f"{belongs or 'without it the step cannot be done'}."
    seen = None if back in space.simulations.refusals else changed(search, best, back)
    if seen is None:
        refusal = space.simulations.refusals.get(back)
        return _what_is(refusal.reason) if refusal else f"{planning.because or 'without it the step takes longer'}."
    along = [other for other in differing(back, best.recipe) if other != name]
    text = f"without {' and '.join(['it', *along])} a step {_change(best, seen)}"
    text += f"{', which does not fit' if seen.need_bytes > capacity_bytes else ''} ({seen.source})"
    by = planning.by_block
    if by is not None and by.in_words:
        everything = space.simulations.probes.get(best.recipe.replace(**EVERYWHERE[by.how]))
        if everything is not None and everything.seconds > best.seconds:
            text += f"; {by.in_words} would take {format_seconds(everything.seconds - best.seconds)} more"
    if name in space.sharing_fields:
        plain = getattr(Recipe(), name)
        without = min(probe.need_bytes for probe in space.usable() if getattr(probe.recipe, name) == plain)
        if without > capacity_bytes:
            text += f"; nothing that was simulated without it needs less than {format_bytes(without)}, and "
            text += f"{format_bytes(capacity_bytes)} of the budget are for tensors"
    return text + "."


def _change(best: Probe, other: Changed) -> str:
    """The difference of a step by another recipe to the plan's, in words."""
    more, slower = other.need_bytes - best.need_bytes, other.seconds - best.seconds
    memory = f"takes {format_bytes(abs(more))} {'more' if more > 0 else 'less'}" if more else "takes as much memory"
    if abs(slower) < 1e-9:
        return f"{memory} and as long"
    return f"{memory} and is {format_seconds(abs(slower))} {'slower' if slower > 0 else 'faster'}"


def _why_off(search: Search, best: Probe, name: str, capacity_bytes: int) -> str:
    space, planning = search.space, _OWNERS[name].planning
    plan = Planned(
        workload=space.workload,
        switchable=_OWNERS[name].name in best.recorded.switchable,
        one_builds=best.recorded.one_builds,
        host_bytes=best.host_bytes,
        calls_blocks=space.calls_blocks,
    )
    known = planning.off(name, plan) if planning.off is not None else ""
    if known:
        return f"{known}."
    beside = [probe for probe in space.usable() if differing(probe.recipe, best.recipe) == [name]]
    if beside:
        other = min(beside, key=lambda probe: (probe.seconds, probe.need_bytes))
        seen = Changed(other.recipe, other.need_bytes, other.seconds, simulated=True)
        return f"{_with_it(best, seen, name, capacity_bytes)}{_instead(best, name)}."
    choices = [(change, _refusal(space, best, name, change)) for change in _choices(space, best, name)]
    refusals = [refusal for _, refusal in choices if refusal is not None]
    if refusals and len(refusals) == len(choices):
        return refusals[0]
    for change in (change for change, refusal in choices if refusal is None):
        for made in space.allowed(best.recipe.to_mapping(), change):
            composed = changed(search, best, made) if differing(made, best.recipe) == [name] else None
            if composed is not None:
                return f"{_with_it(best, composed, name, capacity_bytes)}{_instead(best, name)}."
    belongs = "" if name == _OWNERS[name].fields[0] else f"it belongs to {_OWNERS[name].fields[0]}"
    return (
        planning.because or belongs or f"what it would do beside the rest was not simulated{_instead(best, name)}"
    ) + "."


def _choices(space: Space, best: Probe, name: str) -> list[Changes]:
    """What may be asked of a field that is off: a few sizes, the blocks that are left, the first choice of each level."""
    if name == SIZE:
        sizes = [space.size_change(size) for size in space.sizes()[1:4]]
        return sizes or ([{SIZE: space.batch // 2}] if space.batch is not None and space.batch > 1 else [])
    first = _FIRST.get(name, {})
    return [*_blocks_left(best, name), *(first[level] for level in LEVELS if level in first)]


def _blocks_left(best: Probe, name: str) -> Iterator[Changes]:
    """What is done to some blocks, done to all to which the plan does nothing else."""
    by, names = _OWNERS[name].planning.by_block, best.recorded.block_names
    for field, other in BY_BLOCK.values() if by is not None else ():
        taken = other.chosen(getattr(best.recipe, field), names) if field != name else None
        if by is not None and taken:
            yield {name: by.value([block for block in range(len(names)) if block not in taken], names)}


def _with_it(best: Probe, other: Changed, name: str, capacity_bytes: int) -> str:
    """What a field that is off would change, in words."""
    saved, cost = best.need_bytes - other.need_bytes, other.seconds - best.seconds
    if not other.simulated and abs(saved) < _SAME * best.need_bytes:
        saved = 0
    unneeded = "it is not needed: " if saved > 0 and cost >= 0 else ""
    what = as_typed(getattr(other.recipe, name))
    given = "it" if what == "True" else f"{name}={what}" if len(what) < 40 else "on some blocks it"
    text = f"{unneeded}{given} {_trade(saved, cost)} ({other.source})"
    if other.need_bytes > capacity_bytes:
        return f"{text}, which does not fit"
    return f"{text}, too little for one field more" if 0 < -cost <= (NEARLY - 1) * best.seconds else text


def _instead(best: Probe, name: str) -> str:
    """What the plan does instead of a technique that is off."""
    instead = _OWNERS[name].planning.instead
    found = instead(best.recipe, _in_words(best, BY_BLOCK["recompute"][0])) if instead is not None else ""
    return found and f"; {found}"


def _refusal(space: Space, best: Probe, name: str, change: Changes) -> str | None:
    """Why a change to the plan is not allowed or not possible."""
    made = space.recipe(best.recipe.to_mapping(), change)
    if isinstance(made, str):
        wider = space.under(space.constraints.up_to(LEVELS[-1]))
        other = wider.recipe(best.recipe.to_mapping(), change)
        found = fidelity(other, space.workload).reasons.get(name) if isinstance(other, Recipe) else None
        if found is not None:
            level, reason = found
            return f"{reason.rstrip('.')}: {level}, which is not allowed ({argument('allow', level)})."
        return _what_is(made)
    for recipe, refusal in space.simulations.refusals.items():
        about_it = not refusal.fields or bool(set(change) & set(refusal.fields))
        if about_it and all(getattr(recipe, key) == value for key, value in change.items()):
            return _what_is(refusal.reason)
    return None


def _what_is(message: str) -> str:
    """What an error says without what to do about it: a plan has done that already."""
    return re.split(r"(?<=[^.]\.) +(?=[A-Z])", message)[0].rstrip(".") + "."


def _differing(one: Recipe, other: Recipe) -> list[str]:
    """The fields in which two recipes differ."""
    return [name for name in field_infos(Recipe) if getattr(one, name) != getattr(other, name)]


def _trade(saved_bytes: int, cost_seconds: float) -> str:
    """What a technique would save and cost, in words."""
    memory = f"would {'save' if saved_bytes > 0 else 'take'} {format_bytes(abs(saved_bytes))}"
    memory = "would save no memory" if saved_bytes == 0 else memory if saved_bytes > 0 else f"{memory} more"
    if abs(cost_seconds) < 1e-9:
        return f"{memory} and cost no time"
    if cost_seconds > 0:
        return f"{memory} for {format_seconds(cost_seconds)} a step"
    return f"{memory} and make a step {format_seconds(-cost_seconds)} faster"


def neighbours(budgets: Budgets, best: Probe, budget_of: Callable[[int], int]) -> tuple[str, ...]:
    """Returns at most three sentences on what a little more or less budget would change; `budget_of`: need -> budget."""
    lines, known = [], (*budgets.points, *budgets.composed)
    faster = [
        point for point in known if point.step_seconds < 0.998 * best.seconds and point.need_bytes > best.need_bytes
    ]
    if faster:
        more = min(faster, key=lambda point: (point.need_bytes, point.step_seconds))
        lines.append(f"from {format_bytes(budget_of(more.need_bytes), up=True)} on a step takes {_step_of(more, best)}")
    else:
        lines.append("more budget makes no step faster that was simulated or composed")
    lines.append(f"this recipe would still fit {format_bytes(budget_of(best.need_bytes), up=True)}")
    less = [point for point in known if point.need_bytes < 0.995 * best.need_bytes]
    if less:
        next_one = min(less, key=lambda point: (point.step_seconds, point.need_bytes))
        least = format_bytes(budget_of(next_one.need_bytes), up=True)
        lines.append(f"below that a step takes {_step_of(next_one, best)} down to {least}")
    return tuple(lines)


def _step_of(point: BudgetPoint, best: Probe) -> str:
    source = "simulated" if point.simulated else "composed"
    return f"{format_seconds(point.step_seconds)} ({source}: this recipe with {_difference(point.recipe, best.recipe)})"


def _difference(recipe: Recipe, other: Recipe) -> str:
    """What one recipe has and another has not, as it is typed; of a long list of blocks their number."""
    texts = {name: as_typed(getattr(recipe, name)) for name in _differing(recipe, other)}
    short = (text if len(text) < 30 else f"{len(getattr(recipe, name))} blocks" for name, text in texts.items())
    return ", ".join(f"{name}={text}" for name, text in zip(texts, short, strict=True))
