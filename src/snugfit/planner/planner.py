"""From a budget to a plan: search, verify, compare, explain. What was simulated for one budget serves the next."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from snugfit.errors import DoesNotFitError, InputError, RecipeError, warn
from snugfit.fidelity import fidelity
from snugfit.planner.card_of_budget import estimate_on
from snugfit.planner.compiled import best_as_it_runs
from snugfit.planner.constraints import Constraints
from snugfit.planner.elsewhere import ways_elsewhere
from snugfit.planner.explain import neighbours, reasons
from snugfit.planner.fallbacks import composed_fallbacks, fallbacks_of
from snugfit.planner.for_budgets import budgets_of
from snugfit.planner.frontier import frontier_of
from snugfit.planner.margin import margin_for
from snugfit.planner.microbatches import Microbatches
from snugfit.planner.one_change import turned_back_that_may_fit
from snugfit.planner.plan_result import Plan
from snugfit.planner.probe import Place, Probe, Simulations
from snugfit.planner.refusal import Refusal, does_not_fit
from snugfit.planner.rivals import rivals_of
from snugfit.planner.search import MOST_OPERATORS, Search
from snugfit.planner.separable import Check
from snugfit.planner.sharing import in_order, may_win, narrowest
from snugfit.planner.smallest import Smallest, smallest_of
from snugfit.planner.space import EVERYWHERE, Space
from snugfit.recipe import Recipe
from snugfit.report.waiting import waits_are_told
from snugfit.run import Run
from snugfit.simulator.prediction import Estimate
from snugfit.simulator.subjects import Subject
from snugfit.simulator.too_heavy import TooHeavyError
from snugfit.techniques.batch_share import at_once, sharers
from snugfit.techniques.levels import Level
from snugfit.techniques.shard import least_weights

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
        known = self._too_heavy or self._plain().recorded
        assert known.workload is not None
        Run(self.constraints.base(), known.workload)
        found = self._space(known.workload.replace(**self._microbatches.traits()))
        return dataclasses.replace(
            found, weight_bytes=sum(known.weight_bytes.values()), switchable=tuple(known.switchable)
        )

    def _space(self, workload: Workload) -> Space:
        """The space of a workload as far as it is known without a simulation."""
        base = self.constraints.base()
        return Space(simulations=self.simulations, constraints=self.constraints, workload=workload, base=base)

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
        self.look_at_microbatches()
        best = self._found(capacity)
        if best is None:
            smallest = smallest_of(self.space().strategies())
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
            found = search.best(capacity)
            assert found is not None
            back = turned_back_that_may_fit(search, found, capacity)
            self.simulations.simulate(search.space.refined(found.recipe), ahead=back)
            best = best_as_it_runs(search, capacity)
            if best is None:
                raise self._does_not_fit(budget_bytes, Smallest(search.space))
            if best.recipe.compile == "none":
                back = turned_back_that_may_fit(search, best, capacity)
                self.simulations.simulate(back, ahead=composed_fallbacks(search, best))
            fallbacks = fallbacks_of(search, best)
            # Nothing that was simulated for a fallback is the better plan; an eager step is none for a compiled one.
            if best.recipe.compile != "none" or search.best(capacity) is best:
                break
        return self._plan(best, fallbacks, budget_bytes, capacity)

    def look_at_microbatches(self) -> None:
        """Finds out, once, whether they add up to the batch."""
        if self._microbatches.pending:
            self._simulate_first()
            self._microbatches.look(self._plain(), self.constraints, self.simulations.call)

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
        base, everywhere = self.constraints.base(), EVERYWHERE["recompute"]
        with contextlib.suppress(RecipeError):
            if self.subject.workload.ranks > 1:  # none of them may be able to hold everything, as the base has it
                self.simulations.simulate(
                    [base], ahead=(space.base for space in self._space(self.subject.workload).strategies())
                )
            elif all(map(self.constraints.is_free, everywhere)):
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

    def _plan(self, best: Probe, fallbacks: tuple[Recipe, ...], budget_bytes: int, capacity: int) -> Plan:
        search = self.search
        usable = search.space.usable()
        for message in best.recorded.warnings:
            warn(message)
        estimate = self._estimate(best, search.space.workload, budget_bytes)
        budgets = budgets_of(search, estimate, self.place, self.margin, self._microbatches.settled(), capacity)
        self.constraints.note_host(estimate.host_bytes)
        return Plan(
            recipe=best.recipe,
            estimate=estimate,
            fidelity=fidelity(best.recipe, search.space.workload),
            frontier=frontier_of(usable),
            reasons=reasons(search, best, capacity),
            slowdown=best.seconds / min(probe.seconds for probe in usable),
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
        room = budget_bytes - self.margin.bytes_of(budget_bytes)
        return estimate_on(self.place, room, best, workload, self.subject.title)

    def _does_not_fit(self, budget_bytes: int, smallest: Smallest) -> DoesNotFitError:
        capacity = self.capacity_bytes(budget_bytes)
        hopeless = smallest.is_hopeless(capacity)

        def leanest_at(level: Level) -> Probe | None:
            allowed = level in self.constraints.allow
            most = self._few() if hopeless else None if allowed else MOST_OPERATORS // 10
            return smallest.find_as_it_runs(level, most)

        refusal = Refusal(smallest.space, capacity, leanest_at)
        return does_not_fit(
            title=self.subject.title,
            budget_bytes=budget_bytes,
            refusal=refusal,
            place=self.place,
            margin=self.margin,
            advice=self._microbatches.advice(self.constraints),
            estimate=lambda leanest: self._estimate(leanest, smallest.space.workload, budget_bytes),
        )
