"""Evaluation that runs out of memory goes on in smaller pieces, whose outputs are joined; training is not touched."""

from __future__ import annotations

from typing import Any

from snugfit.errors import OutOfMemoryError, warn
from snugfit.techniques.microbatch.apply import loss_weights
from snugfit.training.fallbacks import samples_of
from snugfit.training.model_call import joined
from snugfit.training.out_of_memory import free_memory, tried
from snugfit.training.passes import Passes


class EvaluationPieces:
    """Finds the number of samples that fit, and keeps to it."""

    def __init__(self, passes: Passes) -> None:
        """Starts with whole batches."""
        self._passes = passes
        self._size: int | None = None

    def output(self, batch: Any) -> Any:
        """Returns the output for a batch.

        Args:
            batch: The batch.

        Raises:
            OutOfMemoryError: One sample alone needs too much.
        """
        samples = samples_of(batch)
        while True:
            output, cause = tried(lambda: self._in_pieces(batch, samples))
            if cause is None:
                return output
            free_memory(self._passes.device)
            now = min((size for size in (samples, self._size) if size is not None), default=1)
            if now < 2:
                raise OutOfMemoryError(
                    f"evaluation ran out of memory on {self._passes.device} with the smallest piece: {cause} Training "
                    "is as it was; leave evaluation out, or resume with a recipe that needs less."
                )
            self._size = now // 2
            warn(
                f"evaluation ran out of memory with {now} samples at once: {cause} It goes on with {self._size}; training "
                "is not touched."
            )

    def _in_pieces(self, batch: Any, samples: int | None) -> Any:
        passes = self._passes
        if self._size is None or samples is None or samples <= self._size:
            return passes.evaluated(batch)
        pieces = list(passes.split(batch, self._size))
        return joined([passes.evaluated(piece) for piece in pieces], loss_weights(pieces, passes.loss_weight))
