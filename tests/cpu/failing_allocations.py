"""Faults on demand: the N-th allocation of a phase fails as the allocator of torch would let it fail."""

from __future__ import annotations

import functools
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.phases import listen

MESSAGE = (
    "[enforce fail at alloc_cpu.cpp:128] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4096 bytes. Error code 12 (Cannot allocate memory)"
)


class FailingAllocations(TorchDispatchMode):
    """Counts the operators that make new tensors, by phase, and fails at the chosen ones instead of running them."""

    def __init__(self, phase=None, at=(), too_large=None):
        """Chooses the faults.

        Args:
            phase: The innermost phase to count in; None: everywhere.
            at: Numbers of the allocations that fail, from 0.
            too_large: Fails every operator for which this function of its arguments says so.
        """
        super().__init__()
        self.phase, self.at, self.too_large = phase, set(at), too_large
        self.count = self.failed = 0
        self.inside = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        current = self.inside[-1] if self.inside else None
        counted = (self.phase is None or current == self.phase) and allocates(func)
        if counted and str((kwargs or {}).get("device")) != "meta":
            number, self.count = self.count, self.count + 1
            if number in self.at or (self.too_large is not None and self.too_large(args)):
                self.failed += 1
                raise RuntimeError(MESSAGE)
        before = [(one, one._version) for one in args[0]] if changes_a_list(func) else ()
        result = func(*args, **(kwargs or {}))
        for one, version in before:  # operators on lists count versions in their kernels, which a mode keeps them from
            if one._version == version:
                torch.autograd.graph.increment_version(one)
        return result

    def heard(self, name, entered):
        """Listens to the phases."""
        self.inside.append(name) if entered else self.inside.pop()


@functools.cache
def allocates(func):
    """Whether an operator makes a new tensor, by its signature: results that alias nothing."""
    returns = func._schema.returns
    return (
        func.namespace == "aten"
        and func is not torch.ops.aten._local_scalar_dense.default
        and any(one.alias_info is None and "Tensor" in str(one.type) for one in returns)
    )


@functools.cache
def changes_a_list(func):
    """Whether an operator changes the tensors of its first argument, a list."""
    return func.namespace == "aten" and func._schema.name.startswith("aten::_foreach") and func._schema.name[-1] == "_"


@contextmanager
def failing(phase=None, at=(), too_large=None):
    """Lets allocations fail while the context is open; yields the counter."""
    mode = FailingAllocations(phase, at, too_large)
    with listen(mode.heard), mode:
        yield mode


@pytest.fixture(autouse=True)
def nothing_to_collect(monkeypatch):
    """A garbage collection for each of a thousand faults would take minutes, and frees nothing here."""
    for module in ("recovery", "unbroken_update", "out_of_memory", "evaluation"):
        monkeypatch.setattr(f"snugfit.training.{module}.free_memory", lambda device: None)
