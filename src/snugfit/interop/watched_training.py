"""What callbacks and loops share: how a training is to be watched, its watch, and what has come of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from snugfit.interop.memory_watch import MemoryWatch
from snugfit.values.assumptions import AssumeArgument, assumptions_from

if TYPE_CHECKING:
    import torch

    from snugfit.interop.memory_report import MemoryReport
    from snugfit.simulator.prediction import Estimate


class WatchedTraining:
    """The memory of a training; each new one is watched anew."""

    def __init__(
        self,
        budget: str | int | None = None,
        *,
        on_exceed: str = "warn",
        predict: bool = True,
        leak_alarm: bool = True,
        assume: AssumeArgument = None,
    ) -> None:
        self.report: MemoryReport | None = None
        """Predicted beside measured, once training has ended."""
        self.estimate: Estimate | None = None
        """The prediction, once training has begun."""
        self._settings: dict[str, Any] = {
            "budget": budget, "on_exceed": on_exceed, "predict": predict, "leak_alarm": leak_alarm,
        }  # fmt: skip
        self._watch = MemoryWatch(**self._settings)
        self._assume = assumptions_from(assume)

    def _predict(self, ask: Callable[[str], Estimate], place: torch.device, hint: str = "") -> None:
        self._watch = MemoryWatch(**self._settings)
        self._watch.before(ask, place, hint)
        self.estimate = self._watch.estimate

    def _finish(self) -> None:
        self.report = self._watch.finish() or self.report
