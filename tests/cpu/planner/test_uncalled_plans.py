"""Plans for models that never call their blocks: nothing is done to blocks there, and the plan says why."""

import functools
import warnings

import planned
import pytest
import uncalled_blocks

from snugfit import Recipe
from snugfit.errors import DoesNotFitError, SnugfitWarning


@pytest.mark.parametrize("way", [uncalled_blocks.parts, uncalled_blocks.weights])
def test_a_plan_leaves_them_out_and_says_why(planning_pool, way):
    model, batch = functools.partial(uncalled_blocks.Stack, way), planned.batch_of(64, 512)
    with planned.planner(planning_pool, model=model, batch=batch, place=planned.CARD) as planner:
        need = planner.simulations.need(Recipe()).need_bytes
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plan = planner.at(int(0.7 * planner.budget_bytes(need)))
        for recipe in (plan.recipe, *plan.fallbacks, *(point.recipe for point in plan.frontier)):
            assert recipe.checkpoint == "none" and recipe.offload_activations in ("none", "all")
        assert "it saves nothing here: the model calls none of its blocks" in plan.reasons["checkpoint"]
        with pytest.raises(DoesNotFitError, match="As for checkpointing blocks, it saves nothing here"):
            planner.at(planner.budget_bytes(0))
    with planned.planner(
        planning_pool, model=model, batch=batch, place=planned.CARD, pins={"checkpoint": "all"}
    ) as planner:
        with pytest.warns(SnugfitWarning):
            plan = planner.at(2 * planner.budget_bytes(need))
        assert plan.reasons["checkpoint"].startswith("pinned to all; it saves nothing here")
