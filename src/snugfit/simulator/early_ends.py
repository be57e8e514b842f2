"""Loops of libraries behind a loader that ends early: they evaluate then, as they would after the steps they wait for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from snugfit.attributes import Change

_TRANSFORMERS = "transformers.trainer_callback"
_LIGHTNING = ("lightning.pytorch.loops.training_epoch_loop", "pytorch_lightning.loops.training_epoch_loop")


def early_ends(ended: Callable[[], bool]) -> list[Change]:
    """Returns replacements in the libraries that are imported; `ended`: whether a loader was ended early."""
    changes: list[Change] = []
    if (callbacks := sys.modules.get(_TRANSFORMERS)) is not None:
        flow = callbacks.DefaultFlowCallback
        end = flow.on_epoch_end

        def on_epoch_end(self: Any, args: Any, state: Any, control: Any, **others: Any) -> Any:
            control = end(self, args, state, control, **others)
            control.should_evaluate |= ended() and args.eval_strategy != "no"
            return control

        changes.append((flow, "on_epoch_end", on_epoch_end))
    for name in _LIGHTNING:
        loop = getattr(sys.modules.get(name), "_TrainingEpochLoop", None)
        if loop is not None:
            changes += [(loop, "advance", _advancing(loop.advance, ended))]
            changes += [(loop, "_should_check_val_fx", _asking(loop._should_check_val_fx, ended))]
    return changes


def _advancing(advance: Callable[..., None], ended: Callable[[], bool]) -> Callable[..., None]:
    """Lightning knows by its loader's length which batch is the last, and else leaves the epoch without a word."""

    def advanced(loop: Any, fetcher: Any) -> None:
        try:
            advance(loop, fetcher)
        except StopIteration:
            if ended():
                loop.batch_progress.is_last_batch = True
                loop.on_advance_end(fetcher)
            raise

    return advanced


def _asking(asked: Callable[..., bool], ended: Callable[[], bool]) -> Callable[..., bool]:
    def should_check(loop: Any, fetcher: Any) -> bool:
        last = ended() and loop.batch_progress.is_last_batch and loop._should_check_val_epoch()
        return last or asked(loop, fetcher)

    return should_check
