"""What the check of `separation.py` has found. Imports no torch: it travels to a planner that has not loaded it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Separation:
    """What the check has found."""

    separates: bool | None
    """Whether pieces add up to the batch; None: it could not be said."""
    random: bool = False
    """Whether two runs of the same samples differ."""
    failed: bool = False
    """Whether a few samples, or their pieces, raise an error; `separates` is None then."""
    sentence: str = ""
    """What was seen, where pieces do not add up or nothing could be said."""
    fitting: tuple[str, ...] = ()
    """What to give as `loss_weight`, so that they would."""

    @property
    def advice(self) -> str:
        """What to do where pieces do not add up."""
        if self.fitting:
            return f"With loss_weight={' or '.join(self.fitting)} they agree."
        return "Leave microbatch_size out, or say coupled_samples=True where that is meant."

    def told(self, *, masks: bool = False) -> str:
        """Returns what a person must be told; empty where pieces add up.

        `masks`: whether it is known that random numbers are drawn.
        """
        told = [] if self.separates is not False else [f"{self.sentence} {self.advice}"]
        if self.random and not masks:
            told.append("Two runs of the same samples differ: random numbers are drawn, and pieces draw others.")
        return " ".join(told)

    def joined(self, other: Separation) -> Separation:
        """Returns the verdict of two groups of samples together."""
        if self.separates is other.separates is False:
            both = tuple(weight for weight in self.fitting if weight in other.fitting)
            return dataclasses.replace(self, fitting=both)
        if other.separates is False:
            return other
        return other if self.separates is None else self

    def traits(self) -> dict[str, bool]:
        """Returns the fields of `Workload` that are known now."""
        found = {} if self.separates is None else {"coupled_samples": not self.separates}
        return {**found, **({"dropout": True} if self.random else {})}
