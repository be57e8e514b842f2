"""Random numbers of a run: seeded once, kept with each checkpoint, put back on resume.

Three generators are global to a process: Python's, NumPy's and torch's (one for each device). A resumed run draws the
same numbers as one that was never stopped, so dropout masks and augmentations are the same.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from snugfit import device_kinds

_HOST = torch.device("cpu")


def seed_everything(seed: int) -> None:
    """Seeds the global generators of Python, NumPy (which takes the lowest 32 bits) and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture() -> dict[str, Any]:
    """Returns the state of all global generators, as plain data and tensors that `torch.load(weights_only=True)` reads.

    `python`, `numpy`, `torch`, and those of devices (one state a device; `cuda` is empty without CUDA).
    """
    name, keys, position, has_gauss, cached_gaussian = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (str(name), [int(key) for key in keys], int(position), int(has_gauss), float(cached_gaussian)),
        "torch": torch.get_rng_state(),
        **device_kinds.generator_states(),
    }


def restore(state: dict[str, Any]) -> None:
    """Puts all global generators back into a state of `capture`, of this process or an earlier one."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached_gaussian = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached_gaussian))
    torch.set_rng_state(state["torch"])
    device_kinds.set_generator_states(state)


def torch_generators(device: torch.device) -> tuple[bytes, torch.Tensor | None]:
    """Returns the state of torch's generators that a step draws from: cheap, and without waiting for a device.

    The host's state, outside torch's memory, and that of the device (16 bytes on the host, on CUDA).
    """
    return device_kinds.drawn_from(_HOST), device_kinds.generator_state(device)


def restore_generators(state: tuple[bytes, torch.Tensor | None], device: torch.device) -> None:
    """Puts torch's generators back."""
    host, on_device = state
    device_kinds.draw_from(_HOST, host)
    device_kinds.set_generator_state(device, on_device)
