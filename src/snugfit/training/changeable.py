"""What of a recipe may change in the middle of a run: the one rule, asked by training and by the planner.

Between two steps nothing is saved for a backward pass, so everything that only changes how the passes run can be taken off
and put on anew, and an update can be replaced by one that takes over its state. What was decided when the model was built
stays: the dtype of the weights, what is trained, which algorithm updates it. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from snugfit.recipe import Recipe
from snugfit.run import contradictions
from snugfit.techniques import TECHNIQUES
from snugfit.workload import Workload

_TOUCHES = {field: row.may_change for row in TECHNIQUES if row.may_change for field in row.fields}
PASS_FIELDS = tuple(field for field, what in _TOUCHES.items() if what == "passes")
"""Fields that change how the forward and backward passes run."""
UPDATE_FIELDS = tuple(field for field, what in _TOUCHES.items() if what == "update")
"""Fields that change the update and where gradients add up."""
CHANGEABLE = tuple(_TOUCHES)
"""Fields of a recipe that may change in the middle of a run; those of loading are for the caller's loader."""


def differing(recipe: Recipe, reference: Recipe) -> list[str]:
    """Returns the fields in which two recipes differ."""
    return [name for name, value in recipe.to_mapping().items() if value != reference.to_mapping()[name]]


def problems_of_change(recipe: Recipe, other: Recipe, workload: Workload) -> Iterator[str]:
    """Yields a sentence for each reason why a run by `recipe` cannot go on with `other`."""
    fixed = [name for name in differing(other, recipe) if name not in CHANGEABLE]
    if fixed:
        stay = "stays" if len(fixed) == 1 else "stay"
        yield f"{', '.join(fixed)} {stay} for the whole run; a fallback may change {', '.join(CHANGEABLE)}."
        return
    yield from contradictions(other, workload)
