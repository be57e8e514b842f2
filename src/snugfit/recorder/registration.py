"""Tells torch of the fake accelerator. This changes the whole process; only the worker does it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from snugfit import private_torch
from snugfit.fake_device import attention_kernels, autocast, fake_versions, own_kernels, value_gradients
from snugfit.fake_device.accelerator import backend
from snugfit.fake_device.personality import DEVICE_TYPE, Personality
from snugfit.operators import convolution_layout, recurrent_kernels, sync_batch_norm
from snugfit.private_torch import backward_in_place, fake_tensors, python_backend
from snugfit.recorder.recorder import Recorder

_registered = False
_simulating = False
_threads = 1
"""Threads that torch takes by itself in this process."""


def is_simulation() -> bool:
    """Returns whether what runs now is simulated, so that a person's own code that measures itself has nothing to."""
    return _simulating


@contextmanager
def simulating() -> Iterator[None]:
    """Context in which a simulation is recorded; a process that knows the fake accelerator may train for real, too."""
    global _simulating
    before, _simulating = _simulating, True
    try:
        yield
    finally:
        _simulating = before


def register() -> None:
    """Makes the fake accelerator the accelerator of this process; a second call does nothing."""
    global _registered, _threads
    if _registered:
        return
    _registered = True
    _threads = torch.get_num_threads()
    backward_in_place.check_summed_in_place()
    python_backend.register_backend(DEVICE_TYPE, backend)
    fake_tensors.let_optimizers_take_fakes()
    private_torch.skip_dispatch_rules(Recorder)
    autocast.register()
    attention_kernels.register()
    convolution_layout.register(DEVICE_TYPE)
    recurrent_kernels.register()
    sync_batch_norm.register()
    value_gradients.register()
    fake_versions.register()
    own_kernels.register()


@contextmanager
def threads_on_cpu(count: int) -> Iterator[None]:
    """Context in which simulated runs on cpu compute with this many threads, those of the process that asks."""
    global _threads
    before, _threads = _threads, count
    try:
        yield
    finally:
        _threads = before


@contextmanager
def threads_of(personality: Personality) -> Iterator[None]:
    """Context in which torch believes it has the threads of a cpu run, by which it chooses and sizes kernels."""
    before = torch.get_num_threads()
    if personality.kind == "cpu":
        torch.set_num_threads(personality.threads or _threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
