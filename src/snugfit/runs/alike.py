"""Whether all processes of a run are about to train the same model on the same data."""

from __future__ import annotations

from typing import Any

from torch import nn

from snugfit.errors import InputError
from snugfit.runs.joining import Processes
from snugfit.runs.request import Request
from snugfit.techniques.batches import first_tensor
from snugfit.workloads.data import Splits

_LOOKED_AT = 64
"""First values of a parameter that are compared: other seeds and other files differ there."""


def check_alike(processes: Processes, model: nn.Module, data: Splits, request: Request) -> None:
    """Compares model, data and request of all processes before training; any difference is an `InputError` in all."""
    if processes.count == 1:
        return
    sample = first_tensor(data.train.batch([0])) if hasattr(data.train, "batch") else None
    seen = {
        "model (names and shapes of its parameters)": [
            (name, tuple(weight.shape), str(weight.dtype)) for name, weight in model.named_parameters()
        ],
        "data (samples of its parts)": [
            0 if part is None else len(part) for part in (data.train, data.validation, data.test)
        ],
        "data (its first sample)": None if sample is None else sample.flatten()[:_LOOKED_AT].tolist(),
        "training settings": request.settings.to_mapping(),
        "starting weights": {
            name: weight.detach().flatten()[:_LOOKED_AT].cpu().tolist()
            for name, weight in model.named_parameters()
            if not weight.is_meta  # those of the first process come later
        },
    }
    every: list[dict[str, Any]] = processes.all({what: repr(value) for what, value in seen.items()})
    for what in seen:
        others = [str(number) for number, one in enumerate(every) if one[what] not in (every[0][what], repr({}))]
        if others:
            raise InputError(
                f"process {', '.join(others)} of {processes.count} has another {what.partition(' (')[0]} than the first"
                f"{' (' + what.partition(' (')[2] if '(' in what else ''}. Give all of them the same command, the same "
                "files and the same seed."
            )
