"""Which device a run would train on, found out in a process of its own, so that nobody here holds memory on it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

from snugfit.errors import InputError

_PROGRAM = """
import json, torch
cuda = torch.cuda.is_available()
bf16 = torch.cuda.is_bf16_supported(including_emulation=False) if cuda else True
name = torch.cuda.get_device_name() if cuda else "CPU"
print(json.dumps({"kind": "cuda" if cuda else "cpu", "bf16": bf16, "name": name}))
"""


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceProbe:
    """What the probing process found."""

    kind: str
    """`cuda` or `cpu`."""
    bf16: bool
    """Whether it computes in bf16 by itself; torch's CPU kernels do so on every machine."""
    name: str
    """The card's name, or CPU."""


CPU = DeviceProbe("cpu", True, "CPU")


def probe_device(asked: str) -> DeviceProbe:
    """Returns the device that `--device` means on this machine.

    Args:
        asked: auto, cpu or cuda.

    Returns:
        The device.

    Raises:
        InputError: cuda was asked for and is not there, or torch does not start.
    """
    if asked == "cpu":
        return CPU
    run = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True)
    if run.returncode != 0:
        raise InputError(f"torch does not start: {run.stderr.strip().splitlines()[-1:]}")
    found = DeviceProbe(**json.loads(run.stdout.splitlines()[-1]))
    if asked == "cuda" and found.kind != "cuda":
        raise InputError("device 'cuda' is not there: torch sees no CUDA device. Use --device cpu, or leave it out.")
    return found
