"""What a plan makes of the check whether microbatches add up to the batch (`separable.py`), which is made once."""

from __future__ import annotations

import dataclasses

from snugfit.errors import warn
from snugfit.planner.constraints import Constraints
from snugfit.planner.probe import Probe
from snugfit.planner.separable import Call, Check, Checked
from snugfit.planner.space import SIZE
from snugfit.techniques.batch_share import largest_share


class Microbatches:
    """What is known of the microbatches of one training."""

    def __init__(self, check: Check | None) -> None:
        """Has checked nothing; `check`: None: the first step of training does."""
        self._check = check
        self._checked: Checked | None = None

    @property
    def pending(self) -> bool:
        """Whether the check is still to be made."""
        return self._check is not None

    def look(self, plain: Probe, constraints: Constraints, call: Call) -> None:
        """Makes the check, where a plan could have microbatches, and warns where they change the update.

        `plain`: plain training with the pins.
        `call`: calls a function in a worker.
        """
        check, self._check = self._check, None
        workload = plain.recorded.workload
        assert check is not None and workload is not None
        pinned = constraints.pins.get(SIZE)
        share = largest_share(plain.recipe, workload)
        free = constraints.is_free(SIZE) and share != 1
        ruled_out = (workload.batch_norm or workload.dropout) and "different" not in constraints.allow
        if workload.coupled_samples is not None or not (pinned or (free and not ruled_out)):
            return
        samples = min(share or 1, pinned or share or 1)
        flops = plain.timing.flops / (share or samples)
        checked = check(call, flops, plain.recorded.parameters)
        if checked is None:
            return
        found = checked.separation
        if found.failed:  # the whole batch was simulated, so being cut is what its samples do not stand
            found = dataclasses.replace(found, separates=False)
        self._checked = dataclasses.replace(checked, separation=found)
        if found.separates is False:
            allowed = pinned or "different" in constraints.allow
            what = "microbatches change the update" if allowed else "microbatches are left out of the plan"
            warn(f"{what}: {found.sentence} {found.advice}")

    def traits(self) -> dict[str, bool]:
        """Returns what the check has found of model and loss."""
        return {} if self._checked is None else self._checked.separation.traits()

    def settled(self) -> dict[str, bool]:
        """Returns the part of it that training need not find out again."""
        found = self.traits()
        if self._checked is not None and not self._checked.real_values and found.get("coupled_samples") is False:
            del found["coupled_samples"]  # of random values; the first step has those that count
        return found

    def advice(self, constraints: Constraints) -> str:
        """Returns a line for a refusal where microbatches were left out; else nothing."""
        found = None if self._checked is None else self._checked.separation
        if found is None or found.separates is not False or "different" in constraints.allow:
            return ""
        return f"\nMicrobatches were left out: {found.sentence} {found.advice}"
