"""Which device a run would train on, found out in a process of its own, so that nobody here holds memory on it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

from snugfit import device_kinds
from snugfit.errors import InputError


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceProbe:
    """What the probing process found."""

    kind: str
    """Its device type, such as `cuda`."""
    bf16: bool
    """Whether it computes in bf16 by itself; torch's CPU kernels do so on every machine."""
    name: str
    """The card's name, or CPU."""


CPU = DeviceProbe("cpu", True, "CPU")


def probe_device(asked: str) -> DeviceProbe:
    """Returns the device that `--device` means on this machine.

    Args:
        asked: auto, or a device type.

    Returns:
        The device.

    Raises:
        InputError: What was asked for is not there, or torch does not start.
    """
    if asked == device_kinds.CPU:
        return CPU
    run = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True)
    if run.returncode != 0:
        raise InputError(f"torch does not start: {run.stderr.strip().splitlines()[-1:]}")
    found = DeviceProbe(**json.loads(run.stdout.splitlines()[-1]))
    if asked not in ("auto", found.kind):
        raise InputError(f"device {asked!r} is not there; torch finds {found.kind}. Use --device cpu, or leave it out.")
    return found


def _tell() -> None:
    """What the probing process does."""
    import torch

    device = torch.device(device_kinds.default_device())
    found = DeviceProbe(device.type, device_kinds.computes_in_bf16(device), device_kinds.name_of(device))
    sys.stdout.write(json.dumps(dataclasses.asdict(found)))


if __name__ == "__main__":
    _tell()
