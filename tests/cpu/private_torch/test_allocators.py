"""Events of torch's allocators."""

import torch

from snugfit.private_torch import allocators


def test_events_of_the_allocator():
    """start_allocator_events, stop_allocator_events, watched"""
    allocators.start_allocator_events()
    kept = torch.empty(1000)
    passing = torch.empty(10, dtype=torch.float64)
    passing_address = passing.untyped_storage().data_ptr()
    del passing
    events = allocators.stop_allocator_events()
    assert [nbytes for nbytes, _ in events] == [4000, 80, -80]
    assert [address for _, address in events] == [kept.data_ptr(), passing_address, passing_address]


def test_the_history_of_a_card_is_asked_for_as_torch_takes_it():
    """start_cuda_history, cuda_history, stop_cuda_history: tests/gpu reads one; here only the arguments are held to it."""
    import inspect

    taken = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    assert "enabled" in taken
    assert any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values()) or {
        "context",
        "max_entries",
        "device",
        "clear_history",
    } <= set(taken)
    assert next(iter(inspect.signature(torch.cuda.memory._snapshot).parameters)) == "device"
