"""Plans at many budgets against every recipe of a list, what gains nothing, and reasons against one field changed."""

import dataclasses
import functools
import itertools
import re
import warnings

import planned
import pytest

from snugfit.errors import DoesNotFitError, RecipeError
from snugfit.planner import explain
from snugfit.planner.closeness import NEARLY, closest, farness, fields_on, turned_back
from snugfit.planner.constraints import Constraints
from snugfit.planner.one_change import changed, differing
from snugfit.planner.planner import Planner
from snugfit.recipe import Recipe
from snugfit.units import format_bytes
from snugfit.workload import Workload

SHARES = (0.9, 0.75, 0.68, 0.5)
"""Budgets, as shares of what plain training needs."""
EXACT, ROUNDING = frozenset({"exact"}), frozenset({"exact", "rounding"})
ROUNDED = {"precision": "bf16-true", "stochastic_rounding": True}
PASSES = [
    {},
    {"checkpoint": "all"},
    {"checkpoint": "selective"},
    {"checkpoint": "blocks:1"},
    {"checkpoint": "blocks:2"},
]
ON_HOST = [{"offload_activations": "all"}, {"checkpoint": "all", "offload_activations": "checkpoints"}]
CASES = {
    "activations on a card": (
        planned.CARD, functools.partial(planned.Stack, blocks=3), planned.batch_of(16, 1024), EXACT,
        (None, 4, 1), [*PASSES, *ON_HOST], [{}], [{}, {"step_in_backward": True}],
    ),
    "weights on a card": (
        planned.CARD, functools.partial(planned.Stack, 512, 2), planned.batch_of(4, 64), ROUNDING,
        (None, 1), PASSES[:3], [{}, ROUNDED],
        [{}, {"optimizer": "adamw8bit"}, {"optimizer": "adamw8bit", "step_in_backward": True}],
    ),
    "activations on cpu": (
        planned.CPU, functools.partial(planned.Stack, blocks=3), planned.batch_of(16, 256), EXACT,
        (None, 4, 1), PASSES, [{}], [{}],
    ),
}  # fmt: skip
"""Name -> place, model, batch, what may be given up; sizes of microbatch, passes, number formats and updates of the list."""


def listed(sizes, *rest):
    for size, *changes in itertools.product(sizes, *rest):
        given = {name: value for change in changes for name, value in change.items()}
        if size is not None:
            if given.get("step_in_backward"):
                continue  # a gradient that is used at once cannot add up
            given["microbatch_size"] = size
            if given.get("precision") == "bf16-true":
                given["accumulate_dtype"] = "fp32"
        yield Recipe(**given)


@pytest.fixture(scope="module", params=CASES)
def plans(planning_pool, request):
    """The simulations of the list, and for each budget a planner, which is told of the list only what it asks for."""
    place, model, batch, allow, *lists = CASES[request.param]
    with planned.planner(planning_pool, place=place, model=model, batch=batch, allow=allow) as known:
        known.simulations.simulate([Recipe(), *listed(*lists)])
        plain = known.simulations.probes[Recipe()].need_bytes
        found = []
        for share in SHARES:
            given = known.subject, place, Constraints(allow=allow)
            planner = Planner(
                *given, pool=planning_pool, before=known.simulations
            )  # asks what is known only where it would
            budget = known.budget_bytes(int(share * plain))
            capacity = planner.capacity_bytes(budget)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what the plan's own recipe warns of
                try:
                    found.append((planner, planner.at(budget), capacity))
                except DoesNotFitError:  # how little is enough is looked for elsewhere (`smallest.py`)
                    planner.close()
        assert len(found) >= 3
        yield known.simulations, found
        for planner, _, _ in found:
            planner.close()


def test_no_recipe_of_a_list_is_faster(plans):
    simulations, found = plans
    for _, plan, capacity in found:
        fitting = [probe.seconds for probe in simulations.probes.values() if probe.need_bytes <= capacity]
        assert plan.step_seconds <= 1.03 * min(fitting, default=float("inf")), plan.recipe


def test_nothing_is_on_that_gains_nothing(plans):
    simulations, found = plans
    for planner, plan, capacity in found:
        for name in fields_on(plan.recipe):
            back = turned_back(planner.search.space, plan.recipe, name)
            if back is None or back in planner.simulations.refusals:
                continue
            seen = simulations.need(back)  # also where the planner was content with a composition
            assert seen.need_bytes > capacity or seen.seconds > plan.step_seconds, (name, plan.recipe)


def test_reasons_are_the_plan_with_one_field_changed(plans):
    simulations, found = plans
    told = 0
    for planner, plan, _ in found[1::2]:
        mine = planner.simulations.probes[plan.recipe]
        for name in fields_on(plan.recipe):
            try:
                alone = plan.recipe.replace(**{name: getattr(Recipe(), name)})
            except RecipeError:  # another field needs it
                continue
            if turned_back(planner.search.space, plan.recipe, name) != alone:
                continue
            other = simulations.need(alone)
            told += 1
            if alone not in planner.simulations.probes:
                composed = changed(planner.search, mine, alone)
                assert (
                    composed.need_bytes == pytest.approx(other.need_bytes, rel=0.2)
                    and "(composed)" in plan.reasons[name]
                )
                continue
            more, slower = other.need_bytes - mine.need_bytes, other.seconds - mine.seconds
            assert f"without it a step takes {format_bytes(abs(more)) if more else 'as much'}" in plan.reasons[name]
            assert abs(slower) < 1e-9 or ("slower" if slower > 0 else "faster") in plan.reasons[name]
    assert told >= len(found) // 2


def test_what_is_composed_of_a_field_that_is_off_is_what_its_simulation_shows(plans):
    simulations, found = plans
    told = 0
    for planner, plan, _ in found[::2]:
        mine = planner.simulations.probes[plan.recipe]
        for name, text in plan.reasons.items():
            assert "(simulated)" in text or "(composed)" in text or not re.search(r"\d (s|ms|MiB|GiB)\b", text), text
            if "(composed)" not in text:
                continue
            one = asked_for(planner, mine, name)
            seen = simulations.need(one.recipe)
            told += 1
            # Copies of a few blocks hide behind what the host does; all of them, from which a block's part is taken, do not.
            assert one.seconds == pytest.approx(seen.seconds, rel=0.25), one.recipe
            near = pytest.approx(seen.need_bytes, rel=0.2, abs=planned.GIVEN_BACK_BYTES)
            assert one.need_bytes == near, one.recipe
    assert told


def asked_for(planner, mine, name):
    """The plan with a field on that is off, as its reason has it."""
    space = planner.search.space
    for change in explain._choices(space, mine, name):
        for made in space.allowed(mine.recipe.to_mapping(), change):
            one = changed(planner.search, mine, made) if differing(made, mine.recipe) == [name] else None
            if one is not None:
                return one
    raise AssertionError(name)


def test_of_recipes_that_take_nearly_the_same_time_the_closer_one_is_taken(planning_pool):
    workload = Workload(batch_size=16)
    ordered = [
        Recipe(),
        Recipe(checkpoint="all"),
        Recipe(checkpoint="all", microbatch_size=4),
        Recipe(optimizer="adamw8bit"),
        Recipe(optimizer="adamw4bit"),
        Recipe(**ROUNDED),
        Recipe(optimizer="sgd"),
        Recipe(optimizer="sgd", checkpoint="all"),
    ]
    far = [farness(recipe, workload) for recipe in ordered]
    assert far == sorted(far) and len(set(far)) == len(far)
    with planned.planner(planning_pool) as planner:
        plain = planner.simulations.need(Recipe())
    faster = timed(plain, Recipe(checkpoint="all"), plain.seconds / (NEARLY + 0.001))
    nearly = timed(plain, Recipe(checkpoint="all"), plain.seconds / (NEARLY - 0.001))
    assert closest([plain, nearly], workload) is plain and closest([plain, faster], workload) is faster
    assert closest([], workload) is None


def timed(probe, recipe, seconds):
    return dataclasses.replace(probe, recipe=recipe, seconds=seconds)
