"""A minute of measuring this machine's card or processor, kept for every prediction after it: `snugfit calibrate`."""

from __future__ import annotations

import datetime
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from snugfit import calibrations
from snugfit.device_kinds import CPU, name_of
from snugfit.devices import card_identity
from snugfit.errors import warn
from snugfit.fake_device import cpu_operators
from snugfit.fields import as_data
from snugfit.measure.card_speeds import CardSpeeds, card_speeds
from snugfit.measure.full_speed import SLOWER
from snugfit.measure.host_speeds import measured_speeds
from snugfit.measure.processor import this_processor
from snugfit.recording.cpu_clock import processor_identity
from snugfit.recording.kernel_times import LINK_SHARE, MEMORY_SHARE

_PASSES, _MOST_PASSES, _APART_SECONDS = 7, 14, 0.5
"""A processor is measured several times: what is little, as the cost of a pass, came out up to three times as large. Of 30
passes five began while the machine was slower, so that they knew no full speed; those do not count."""
_PATIENCE_SECONDS = 3.0
"""Most seconds that a pass waits for the machine's full speed."""
_MOST_SECONDS = 60.0
"""Of the clock on the wall; no pass begins that would end later, but for the first."""


def calibrate(device: torch.device) -> dict[str, Any]:
    """Measures a device and keeps what was found, in place of an earlier measurement.

    Args:
        device: This machine's processor or a card of it.

    Returns:
        What is kept: `identity`, `date`, `speeds`; of a card also `row`, its fields of `Device`. And `path`, the file.

    Raises:
        InputError: It cannot be kept.
    """
    found: dict[str, Any] = {"date": datetime.date.today().isoformat()}
    if device.type == CPU:
        processor = this_processor()
        identity = processor_identity(processor.in_words(), torch.__version__)
        # Operators that were timed before, perhaps on a busy machine, are asked again.
        cpu_operators.of_this_processor().forget()
        found["speeds"] = _speeds(processor.threads)
    else:
        identity = card_identity(name_of(device), torch.__version__)
        speeds = card_speeds(device)
        found |= {"speeds": as_data(speeds), "row": row_of(speeds)}
    return {"identity": identity, **found, "path": str(calibrations.keep(identity, found))}


def _speeds(threads: int) -> dict[str, Any]:
    """Measures a processor several times, and takes the middle of each number."""
    passes = list[dict[str, Any]]()
    counted = passes
    began = time.monotonic()
    while len(counted) < _PASSES and len(passes) < _MOST_PASSES:
        taken = time.monotonic() - began
        if passes and taken + taken / len(passes) > _MOST_SECONDS:
            warn(
                f"the processor is busy: {len(counted)} of {_PASSES} passes in {taken:.0f} seconds count. Predicted "
                "times are rough; calibrate again when nothing else runs."
            )
            break
        if passes:
            time.sleep(_APART_SECONDS)
        passes.append(as_data(measured_speeds.__wrapped__(threads, _PATIENCE_SECONDS)))
        full = min(one["few_operators_seconds"] for one in passes)
        counted = [one for one in passes if one["few_operators_seconds"] <= SLOWER * full]
    found: dict[str, Any] = _middle(counted)
    return found


def _middle(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {name: _middle([value[name] for value in values]) for name in first}
    if isinstance(first, list | tuple):
        return [_middle(parts) for parts in zip(*values, strict=True)]
    return statistics.median(values)


def row_of(speeds: CardSpeeds) -> dict[str, Any]:
    """Returns measured speeds as fields of `Device`, which hold peaks: the clock counts on a share of each.

    Args:
        speeds: What was measured.
    """
    row = {
        "flops": dict(speeds.product_rates),
        "sustained": {"float32": 1.0, "tensor": 1.0},
        "memory_bandwidth": speeds.bytes_per_second / MEMORY_SHARE,
        "corrects_in_memory": False,
        "host_operator_seconds": speeds.operator_seconds,
    }
    if speeds.link_bytes_per_second is not None:
        row["host_link_bandwidth"] = speeds.link_bytes_per_second / LINK_SHARE
    if speeds.context_bytes is not None:
        row["context_bytes"] = speeds.context_bytes
    return row
