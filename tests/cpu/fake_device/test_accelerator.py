"""The fake accelerator answers whatever torch's own code may ask of a stream or an event."""

import pytest
import torch

from snugfit.fake_device import accelerator, translate

OF_A_DRIVER = {"native_handle", "ipc_handle", "from_ipc_handle"}
"""Handles for other libraries and processes: there is nothing that they could lead to."""


@pytest.mark.parametrize("kind", ["Stream", "Event"])
def test_it_has_what_those_of_torch_have(kind):
    """torch 2.15's optimizers ask whether the current stream is captured; without an answer nothing was simulated."""
    known = {name for name in dir(getattr(torch, kind)) if not name.startswith("_")}
    assert known - OF_A_DRIVER <= set(dir(getattr(accelerator, kind)()))


def test_nothing_is_captured():
    assert accelerator.Stream().is_capturing() is False


def test_a_card_says_how_much_is_free():
    """Asked for by transformers before it loads weights, and by `device_map="auto"`."""
    card = accelerator.backend
    free, whole = card.mem_get_info(0)
    assert 0 < free == whole - card.memory_allocated() and whole == card.get_device_properties().total_memory
    assert "mem_get_info" in translate.names_of_cuda()


def test_a_card_has_the_properties_that_libraries_ask_for():
    """timm's optimizers cut their lists by the size of the cache."""
    found = accelerator.backend.get_device_properties(0)
    assert (found.major, found.minor) == accelerator.backend.get_device_capability()
    assert found.L2_cache_size > 2**20 and found.warp_size == 32 and found.multi_processor_count > 0
