"""How recipes are simulated for a plan: several at once on a card; on a processor, whose operators are timed, one by one."""

import threading
from types import SimpleNamespace

import planned
import pytest

from snugfit import Recipe
from snugfit.devices import device_named
from snugfit.errors import InputError
from snugfit.fake_device.personality import Personality
from snugfit.planner.probe import WORKERS, Place, Simulations


class Workers:
    """Stands for a pool: counts how many simulations run at once, and waits a moment for another one."""

    def __init__(self):
        self.running, self.most, self._changed = 0, 0, threading.Condition()

    def call(self, *_, **__):
        with self._changed:
            self.running += 1
            self.most = max(self.most, self.running)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= WORKERS, timeout=0.2)
            self.running -= 1
        raise InputError("nothing is simulated here")


@pytest.mark.parametrize(("card", "kind", "at_once"), [("rtx-4090", "cuda", WORKERS), ("cpu", "cpu", 1)])
def test_how_many_at_once(card, kind, at_once):
    workers, place = Workers(), Place(card=device_named(card), personality=Personality(kind=kind))
    simulations = Simulations(SimpleNamespace(title="a model"), place, workers)
    recipes = [Recipe(microbatch_size=size) for size in (1, 2, 4)]
    simulations.simulate(recipes)
    simulations.close()
    assert simulations.refusals.keys() == set(recipes) and workers.most == at_once


@pytest.mark.parametrize("other", ["a100-40gb", "rtx-3060-12gb"])
def test_what_was_recorded_for_one_card_is_measured_for_another(planning_pool, other):
    there = Place(card=device_named(other), personality=Personality(capability=device_named(other).compute_capability))
    recipes = [Recipe(), Recipe(checkpoint="all", microbatch_size=4)]
    with (
        planned.planner(planning_pool, place=planned.CARD) as first,
        planned.planner(planning_pool, place=there) as anew,
    ):
        for planner in (first, anew):
            planner.simulations.simulate(recipes)
        asked = []
        workers = SimpleNamespace(call=lambda *_, **__: asked.append(1))
        again = Simulations(first.subject, there, workers, before=first.simulations)
        again.simulate(recipes)
        again.close()
    assert not asked
    for recipe in recipes:
        told, wanted = again.probes[recipe], anew.simulations.probes[recipe]
        assert told.seconds != first.simulations.probes[recipe].seconds
        for name in ("need_bytes", "total_bytes", "allocated_bytes", "host_bytes", "seconds", "timing", "profile"):
            assert getattr(told, name) == getattr(wanted, name), name


class UpsideDown(planned.Stack):
    def forward(self, x):
        raise ValueError("these images are upside down")


def test_a_step_that_fails_is_tried_for_real_and_one_of_many_recipes_is_not(planning_pool):
    with planned.planner(planning_pool, place=planned.CARD, model=UpsideDown) as planner:
        with pytest.raises(InputError, match=r"The same happens in a real run on CPU .*upside down"):
            planner.at(2**30)
        planner.simulations.simulate([Recipe(checkpoint="all")])
    assert (
        "Whether a real run fails as well was not tried"
        in planner.simulations.refusals[Recipe(checkpoint="all")].reason
    )


class Slow:
    """Stands for workers: notes what they were asked for, in order, and takes its time for the first recipe."""

    def __init__(self):
        self.begun, self.go_on, self._lock = [], threading.Event(), threading.Lock()

    def start(self, count):
        """Has none."""

    def close(self):
        """Has none."""

    def call(self, function, subject, recipe, *_, **__):
        with self._lock:
            self.begun.append(recipe)
        if recipe.microbatch_size == 1:
            assert self.go_on.wait(10)
        elif len(self.begun) >= WORKERS + 1:
            self.go_on.set()
        raise InputError(f"nothing is simulated here: {recipe.microbatch_size}")


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_idle_workers_look_ahead(monkeypatch, kind):
    workers = Slow()
    monkeypatch.setattr("snugfit.planner.probe.Pool", lambda count: workers)
    place = Place(card=device_named("rtx-4090" if kind == "cuda" else "cpu"), personality=Personality(kind=kind))
    simulations = Simulations(SimpleNamespace(title="a model"), place)
    sizes = [Recipe(microbatch_size=size) for size in range(1, WORKERS + 4)]
    if kind == "cpu":
        workers.go_on.set()
    simulations.simulate(sizes[:1], ahead=sizes[1:])
    assert list(simulations.refusals) == sizes[:1]  # what nobody asked for does not count
    if kind == "cpu":  # its operators are timed
        assert workers.begun == sizes[:1]
    else:
        simulations.simulate(sizes[1:3])
        assert list(simulations.refusals) == sizes[:3] and workers.begun.count(sizes[1]) == 1
        assert [simulations.refusals[one].reason[-1] for one in sizes[:3]] == ["1", "2", "3"]
    simulations.close()
