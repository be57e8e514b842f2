"""Processes of their own in which the fake accelerator may be registered, and fake tensors without it."""

from run_code import run_code

from snugfit.private_torch import fake_tensors


def in_a_worker(code):
    """Runs code in a process of its own, in which a fake accelerator may be registered."""
    done = run_code(code)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def fake_pair():
    """A fake mode and a factory of its tensors."""
    mode = fake_tensors.new_fake_mode()
    return mode, fake_tensors.FakeFactory(mode)


REGISTERED = """
import torch
from snugfit import private_torch
from snugfit.private_torch import dispatcher, fake_tensors
from snugfit.recorder import registration
from snugfit.fake_device.accelerator import backend
from snugfit.fake_device.personality import DEVICE_TYPE
registration.register()
mode = fake_tensors.new_fake_mode()
factory = fake_tensors.FakeFactory(mode)
device = torch.device(DEVICE_TYPE, 0)
"""
