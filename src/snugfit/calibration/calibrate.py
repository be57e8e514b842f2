"""A minute of measuring this machine's card or processor, kept for every prediction after it: `snugfit calibrate`."""

from __future__ import annotations

import datetime
from typing import Any

import torch

from snugfit import calibrations
from snugfit.calibration.card_speeds import CardSpeeds, card_speeds
from snugfit.device_kinds import CPU, name_of
from snugfit.devices import card_identity
from snugfit.fields import as_data
from snugfit.operators import cpu_operators
from snugfit.operators.host_speeds import measured_speeds
from snugfit.processor import this_processor
from snugfit.recording.cpu_clock import processor_identity
from snugfit.recording.kernel_times import LINK_SHARE, MEMORY_SHARE


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
        found["speeds"] = as_data(measured_speeds.__wrapped__(processor.threads))
    else:
        identity = card_identity(name_of(device), torch.__version__)
        speeds = card_speeds(device)
        found |= {"speeds": as_data(speeds), "row": row_of(speeds)}
    return {"identity": identity, **found, "path": str(calibrations.keep(identity, found))}


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
