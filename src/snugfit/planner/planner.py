"""From a budget to a plan: search, verify, compare, explain. What was simulated for one budget serves the next."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from snugfit.errors import DoesNotFitError, InputError, RecipeError, note, warn
from snugfit.fidelity import fidelity
from snugfit.nccl import among
from snugfit.planner.closeness import all_turned_back
from snugfit.planner.constraints import Constraints
from snugfit.planner.elsewhere import ways_elsewhere
from snugfit.planner.explain import neighbours, reasons
from snugfit.planner.fallbacks import fallbacks_of
from snugfit.planner.for_budgets import budgets_of
from snugfit.planner.margin import margin_for
from snugfit.planner.microbatches import Microbatches
from snugfit.planner.other_cards import may_be_shared, other_cards
from snugfit.planner.plan_result import FrontierPoint, Plan
from snugfit.planner.probe import Place, Probe, Simulations
from snugfit.planner.refusal import Refusal, does_not_fit
from snugfit.planner.rivals import rivals_of
from snugfit.planner.search import MOST_OPERATORS, Search
from snugfit.planner.separable import Check
from snugfit.planner.sharing import in_order, may_win, narrowest
from snugfit.planner.smallest import MOST_COMPILED, Smallest
from snugfit.planner.space import EVERYWHERE, Space
from snugfit.process_memory import free_host_bytes
from snugfit.recipe import Recipe
from snugfit.report.waiting import waits_are_told
from snugfit.run import Run
from snugfit.simulator.assembly import assemble
from snugfit.simulator.prediction import Estimate
from snugfit.simulator.subjects import Subject
from snugfit.simulator.too_heavy import TooHeavyError
from snugfit.techniques.batch_share import at_once, sharers
from snugfit.techniques.levels import Level
from snugfit.techniques.planning import UNCALLED
from snugfit.techniques.shard import groups_of, least_weights
from snugfit.units import format_bytes

if TYPE_CHECKING:
    from snugfit.workers.pool import Pool
    from snugfit.workload import Workload


class Planner:
    """Plans one training for any number of budgets."""

    def __init__(
        self,
        subject: Subject,
        place: Place,
        constraints: Constraints,
        *,
        pool: Pool | None = None,
        check: Check | None = None,
        before: Simulations | None = None,
    ) -> None:
        """Has simulated nothing yet; workers are its own if `pool` is None.

        `check`: tries whether microbatches add up to the batch; None: the first step of training does.
        `before`: what the same training was simulated by before.
        """
        self.subject = subject
        self.place = place
        self.constraints = constraints.for_workload(subject.workload)
        self.simulations = Simulations(subject, place, pool, before)
        self.margin = margin_for(place.personality.kind, place.card.context)
        self._searches: dict[Recipe, Search] = {}
        self._led_by: Search | None = None
        self._no_use: set[str] = set()
        self._microbatches = Microbatches(check)
        self._too_heavy: TooHeavyError | None = None
        self._told = contextlib.ExitStack()

    def __enter__(self) -> Planner:
        self._told.enter_context(waits_are_told())
        return self

    def __exit__(self, *error: Any) -> None:
        self._told.close()
        self.close()

    def close(self) -> None:
        """Ends the workers."""
        self.simulations.close()

    @property
    def search(self) -> Search:
        """The search that found the last plan; before there is one, that of plain training."""
        return self._led_by or self._search_in(self.space().strategies()[0])

    def _search_in(self, space: Space) -> Search:
        """The search of one way to share, after it has simulated what it starts from."""
        if space.base not in self._searches:
            self._searches[space.base] = Search(space, self._no_use)
        return self._searches[space.base]

    def space(self) -> Space:
        """Returns the space of recipes; `RecipeError` where pins contradict the workload."""
        base = self.constraints.base()
        known = self._too_heavy or self._plain().recorded
        workload = known.workload
        assert workload is not None
        Run(base, workload)
        workload = workload.replace(**self._microbatches.traits())
        return Space(
            simulations=self.simulations,
            constraints=self.constraints,
            workload=workload,
            base=base,
            weight_bytes=sum(known.weight_bytes.values()),
            switchable=tuple(known.switchable),
        )

    def _plain(self) -> Probe:
        """Plain training with the pins, which must be possible."""
        try:
            return self.simulations.need(self.constraints.base())
        except InputError as error:
            if not self.constraints.needed:
                raise
            # Nobody has asked for what the model cannot have.
            raise RecipeError([f"{self.constraints.needed_as} That was tried: {error}"]) from None

    def capacity_bytes(self, budget_bytes: int) -> int:
        """Returns what a recipe may need: the budget less margin and CUDA's context."""
        return self.margin.room_bytes(budget_bytes, self.place.card.context_bytes)

    def budget_bytes(self, need_bytes: int) -> int:
        """Returns the smallest budget, in whole MiB, that has room for a need."""
        return self.margin.budget_for(need_bytes, self.place.card.context_bytes)

    def at(self, budget_bytes: int) -> Plan:
        """Returns the plan for a budget; `DoesNotFitError` where nothing fits."""
        capacity = self.capacity_bytes(budget_bytes)
        if self._weights_do_not_fit(capacity):
            raise self._does_not_fit(budget_bytes, Smallest(self.space()))
        if self._microbatches.pending:
            self._simulate_first()
            self._microbatches.look(self._plain(), self.constraints, self.simulations.call)
        best = self._found(capacity)
        if best is None:
            smallest = self._smallest()
            few = self._few() if smallest.is_hopeless(capacity) else None
            least = smallest.find_as_it_runs(self.constraints.widest, few)
            if least is not None and least.need_bytes <= capacity:
                self._led_by = self._search_in(smallest.space)
                best = self._led_by.run(capacity)
                assert best is not None  # what was found to need the least fits
            else:
                best = None if least is None else self._found_by_last_resort(least, capacity)
            if best is None:
                raise self._does_not_fit(budget_bytes, smallest)
        search = self.search
        while True:
            best = search.best(capacity)
            assert best is not None
            self.simulations.simulate(search.space.refined(best.recipe))
            best = self._as_it_runs(search, capacity)
            if best is None:
                raise self._does_not_fit(budget_bytes, Smallest(search.space))
            if best.recipe.compile == "none":
                self.simulations.simulate(all_turned_back(search.space, best.recipe))
            fallbacks = fallbacks_of(search, best)
            # Nothing that was simulated for a fallback is the better plan; an eager step is none for a compiled one.
            if best.recipe.compile != "none" or search.best(capacity) is best:
                break
        return self._plan(best, fallbacks, budget_bytes, capacity)

    def _as_it_runs(self, search: Search, capacity: int) -> Probe | None:
        """The best recipe, compiled where that is pinned; if it then needs too much, one that needs less."""
        room = capacity
        for _ in range(MOST_COMPILED):
            best = search.best(room)
            if best is None:
                break
            real = self.simulations.as_it_runs(best)
            if real.need_bytes <= capacity:
                return real
            room = int(best.need_bytes * capacity / real.need_bytes)  # less each time
            search.run(room)
        least = Smallest(search.space).find_as_it_runs(self.constraints.widest)
        return least if least is not None and least.need_bytes <= capacity else None

    def _weights_do_not_fit(self, capacity: int) -> bool:
        """Whether the weights alone are too large, however they are held; then nothing is simulated for it."""
        base, self._too_heavy = self.constraints.base(), None
        subject, ranks = self.subject, self.subject.workload.ranks
        part = narrowest(self.constraints, base) * least_weights(base, ranks)
        # What several GPUs hold of them depends on how they share.
        if ranks > 1 or not subject.by_recipe or not part or base in self.simulations.probes:
            return False
        self.simulations.most_weight_bytes = int(max(capacity, 0) / part)
        try:
            self._simulate_first()
            self._plain()
        except TooHeavyError as error:
            self._too_heavy = error
        finally:
            self.simulations.most_weight_bytes = None
        return self._too_heavy is not None

    def _few(self) -> int:
        """Operators that may be simulated for the smallest budgets of what cannot fit: none where the model is large."""
        return max(MOST_OPERATORS // 100 - self.simulations.operators, 0)

    def _simulate_first(self) -> None:
        """Simulates together what is needed in any case, so that both workers are busy."""
        everywhere = EVERYWHERE["recompute"]
        # Of several GPUs none may be able to hold everything, as the base has it.
        if all(map(self.constraints.is_free, everywhere)) and self.subject.workload.ranks == 1:
            base = self.constraints.base()
            with contextlib.suppress(RecipeError):
                self.simulations.simulate([base, base.replace(**everywhere)])

    def _found(self, capacity: int) -> Probe | None:
        """The fastest recipe over all ways to share; None where nothing fits of what is tried first.

        A way is left out where even its fastest recipe is no faster than the best one, or where nothing of it fits;
        nothing is simulated before that only speed is for.
        """
        best: Probe | None = None
        self._led_by = None
        self._simulate_first()
        strategies = self.space().strategies()
        for space in in_order(strategies, capacity):
            if capacity <= 0 or (best is not None and not may_win(space, best, capacity, self._led_by)):
                continue
            if not Smallest(space).may_fit(capacity, longer=len(strategies) > 1, surely=False):
                continue
            search = self._search_in(space)
            search.renew()
            found = search.run(capacity)
            if found is not None and (self._led_by is None or found is not best):
                best, self._led_by = found, search
        return best

    def _found_by_last_resort(self, least: Probe, capacity: int) -> Probe | None:
        """The fastest recipe with a last resort (more GPUs a layer); a plan keeps to it from there on.

        `least`: what needs the least of all else. No way out can need less than its part of that for each GPU of a
        group.
        """
        plain, workload = self.constraints, self.subject.workload
        for constraints in plain.last_resorts(workload, "nothing that was simulated fits"):
            group = workload.ranks // sharers(constraints.base(), workload.ranks)
            if least.need_bytes > capacity * group:
                continue
            self.constraints = constraints
            with contextlib.suppress(InputError):  # a model that cannot be cut so
                found = self._found(capacity)
                if found is not None:
                    return found
        self.constraints = plain
        return None

    def fits(self, budget_bytes: int) -> bool:
        """Returns whether a plan for a budget is likely to be found; simulates less than planning would."""
        capacity = self.capacity_bytes(budget_bytes)
        return any(Smallest(space).may_fit(capacity, longer=True) for space in reversed(self.space().strategies()))

    def _smallest(self) -> Smallest:
        """The search for the least memory, in the way to share that needs the least by now."""
        spaces = self.space().strategies()
        seen = sorted(spaces[0].usable(), key=lambda probe: probe.need_bytes)
        leanest = next((space for probe in seen for space in spaces if space.has(probe.recipe)), spaces[-1])
        return Smallest(leanest)

    def _plan(self, best: Probe, fallbacks: tuple[Recipe, ...], budget_bytes: int, capacity: int) -> Plan:
        search = self.search
        usable = search.space.usable()
        fastest = min(usable, key=lambda probe: probe.seconds)
        for message in best.recorded.warnings:
            warn(message)
        estimate = self._estimate(best, search.space.workload, budget_bytes)
        budgets = budgets_of(search, estimate, self.place, self.margin, self._microbatches.settled(), capacity)
        free = free_host_bytes()
        if self.constraints.host_budget_bytes is None and free is not None and estimate.host_bytes > free:
            needed = format_bytes(estimate.host_bytes)
            note(f"the plan needs {needed} of host memory, and this machine has {format_bytes(free)} free.")
        return Plan(
            recipe=best.recipe,
            estimate=estimate,
            fidelity=fidelity(best.recipe, search.space.workload),
            frontier=_frontier(usable),
            reasons=reasons(search, best, capacity),
            slowdown=best.seconds / fastest.seconds,
            budget_bytes=budget_bytes,
            margin_bytes=self.margin.bytes_of(budget_bytes),
            margin_source=self.margin.source,
            host_budget_bytes=self.constraints.host_budget_bytes,
            fallbacks=fallbacks,
            neighbours=neighbours(budgets, best, self.budget_bytes),
            simulated=len(self.simulations.probes),
            budgets=budgets,
            traits=self._microbatches.settled(),
            rivals=rivals_of(search.space, best, capacity, self.place.card.context_bytes),
            elsewhere=ways_elsewhere(estimate, samples=at_once(best.recipe, best.recorded.workload), fits=True),
        )

    def _estimate(self, best: Probe, workload: Workload, budget_bytes: int) -> Estimate:
        """The estimate on a card as large as the budget less the margin."""
        place = among(self.place.card, groups_of(best.recipe, workload.ranks))
        card = dataclasses.replace(place, memory_bytes=budget_bytes - self.margin.bytes_of(budget_bytes))
        made = assemble([(card, best.recorded)], headline=best.recorded, recipe=best.recipe, title=self.subject.title)
        devices = tuple(dataclasses.replace(row, step_seconds=best.seconds) for row in made.devices)
        found = fidelity(best.recipe, workload)
        return dataclasses.replace(made, step_seconds=best.seconds, devices=devices, fidelity=found)

    def _does_not_fit(self, budget_bytes: int, smallest: Smallest) -> DoesNotFitError:
        capacity, context = self.capacity_bytes(budget_bytes), self.place.card.context_bytes
        hopeless = smallest.is_hopeless(capacity)

        def leanest_at(level: Level) -> Probe | None:
            allowed = level in self.constraints.allow
            most = self._few() if hopeless else None if allowed else MOST_OPERATORS // 10
            return smallest.find_as_it_runs(level, most)

        refusal = Refusal(smallest.space, capacity, leanest_at)
        least, advice = refusal.smallest(), self._microbatches.advice(self.constraints)
        if not smallest.space.calls_blocks:
            advice += f"\nAs for checkpointing blocks, {UNCALLED}."
        leanest = next(iter(least.values()), None)
        if leanest is not None:
            samples = at_once(leanest.recipe, leanest.recorded.workload)
            estimate = self._estimate(leanest, smallest.space.workload, budget_bytes)
            ways = ways_elsewhere(estimate, samples=samples, fits=False)
            advice += "".join(f"\nOn several GPUs: {way}" for way in ways)
            may_share = smallest.space.workload.ranks == 1 and may_be_shared(self.constraints)
            advice += other_cards(leanest.need_bytes, self.place, may_share=may_share)
        margin = f"margin {format_bytes(self.margin.bytes_of(budget_bytes))}"
        return does_not_fit(
            title=self.subject.title,
            budget=f"{format_bytes(budget_bytes)} on {self.place.card.name}",
            taken_off=f"{margin}, CUDA context {format_bytes(context)}" if context else margin,
            refusal=refusal,
            budget_for=self.budget_bytes,
            advice=advice,
        )


def _frontier(usable: list[Probe]) -> tuple[FrontierPoint, ...]:
    points: list[FrontierPoint] = []
    for probe in sorted(usable, key=lambda one: (one.total_bytes, one.seconds)):
        if not points or probe.seconds < points[-1].step_seconds:
            points.append(
                FrontierPoint(
                    recipe=probe.recipe,
                    total_bytes=probe.total_bytes,
                    need_bytes=probe.need_bytes,
                    step_seconds=probe.seconds,
                    host_bytes=probe.host_bytes,
                )
            )
    return tuple(points)
