"""The host pool counts bytes for as long as their memory lives, whoever holds it."""

import copy
import pickle

import pytest
import torch

from snugfit.techniques.host_pool import HostPool
from snugfit.techniques.streams import CopyStream


@pytest.mark.parametrize("kind", ["cpu", "meta"], ids=["mapped pages", "torch's host memory"])
def test_bytes_count_until_the_memory_dies(kind):
    pool = HostPool(torch.device(kind))
    tensor = pool.empty((10, 20), torch.float32)
    assert tensor.shape == (10, 20) and tensor.device.type == "cpu" and pool.nbytes == 800
    parameter = torch.nn.Parameter(tensor)
    view = tensor[3:]
    del tensor
    assert pool.nbytes == 800, "a parameter and a view share the memory"
    del parameter
    assert pool.nbytes == 800
    del view
    assert (pool.nbytes, pool.peak_bytes) == (0, 800)


def test_shapes_strides_and_copies():
    pool = HostPool(torch.device("cpu"))
    assert pool.empty((0, 3), torch.float32).numel() == 0 and pool.nbytes == 0
    assert pool.empty((), torch.float64).dim() == 0
    assert pool.empty((2, 3), torch.int16, strides=(1, 2)).stride() == (1, 2)
    source = torch.randn(4, 4).t()
    assert torch.equal(pool.copy_of(source), source)


def test_mapped_pages_are_outside_torch():
    pool = HostPool(torch.device("cpu"))
    with torch.profiler.profile(profile_memory=True) as profile:
        held = pool.empty((1 << 20,), torch.float32)
        held.zero_()
    allocated = sum(event.self_cpu_memory_usage for event in profile.events())
    assert pool.nbytes == 4 << 20 and abs(allocated) < 4096


def test_streams_are_made_anew_for_a_copy():
    copies = CopyStream(torch.device("cpu"))
    for twin in (copy.deepcopy(copies), pickle.loads(pickle.dumps(copies))):
        assert twin is not copies and twin.compute_mark() is None
