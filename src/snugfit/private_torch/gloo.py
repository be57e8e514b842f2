"""Collectives of gloo that are over for memory, too, when they return.

Gloo's own threads let go of a collective's tensors some time after it is done, later on a busy machine, which no card does;
where they are the last, torch's profiler never reports the release. So a run whose bytes are counted waits until
they have, after collectives of cut layers, too: what is measured is what training holds.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from snugfit.attributes import attributes_set
from snugfit.private_torch import tree_leaves

_PAUSE_SECONDS, _LONGEST_SECONDS = 0.00005, 5
_WAITED_FOR = ("all_gather_into_tensor", "all_gather_single", "broadcast")
_SCATTER = ("reduce_scatter_tensor", "reduce_scatter_single")


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    return (one for one in tree_leaves(values) if isinstance(one, torch.Tensor))


def _users(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The numbers of references to each tensor and its storage."""
    storages = [torch._C._storage_Use_Count(one.untyped_storage()._cdata) for one in tensors]
    return storages + [one._use_count() for one in tensors]  # type: ignore[attr-defined]


class _Patient:
    """Work under way, which is over when its tensors are let go of."""

    def __init__(self, work: Any, let_go: Callable[[], None]) -> None:
        self._work, self._let_go = work, let_go

    def wait(self, *timeout: Any) -> Any:
        done = self._work.wait(*timeout)
        self._work = None  # which holds them as well
        self._let_go()
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


@contextlib.contextmanager
def letting_go() -> Iterator[None]:
    """Context in which collectives return only when nobody else holds their tensors."""
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional

    def wait_until(let_go: Callable[[], bool]) -> None:
        end = time.monotonic() + _LONGEST_SECONDS
        while not let_go() and time.monotonic() < end:
            time.sleep(_PAUSE_SECONDS)

    def patient(collective: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(collective)
        def call(*args: Any, **kwargs: Any) -> Any:
            held = list(_tensors([*args, *kwargs.values()]))
            # A count of references above that of before is gloo's own threads.
            before = _users(held)
            work = collective(*args, **kwargs)

            def let_go() -> None:
                wait_until(lambda: not any(map(operator.lt, before, _users(held))))
                held.clear()

            if work is None:
                let_go()
            return work and _Patient(work, let_go)

        return call

    def in_sight(scatter: Callable[..., Any]) -> Callable[..., Any]:
        """Does what gloo would do, with the copy made where it can be seen."""

        @functools.wraps(scatter)
        def call(
            output: Any, input: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
        ) -> Any:
            if async_op:
                return scatter(output, input, op=op, group=group, async_op=True)
            copy = input.clone()
            all_reduce(copy, op=op, group=group)
            output.copy_(copy.view(-1).chunk(dist.get_world_size(group))[dist.get_rank(group)].view_as(output))

        return call

    def wrapped(tensor: torch.Tensor) -> torch.Tensor:
        """Wraps a result of DTensor's collectives: once gloo has dropped it, only Python holds it."""
        functional.wait_tensor(tensor)  # type: ignore[no-untyped-call]
        wait_until(lambda: tensor._use_count() == 1)  # type: ignore[attr-defined]
        return wrap(tensor)

    wrap = functional._maybe_wrap_tensor
    all_reduce = patient(dist.all_reduce)
    changes = {name: patient(getattr(dist, name)) for name in _WAITED_FOR if hasattr(dist, name)}
    changes |= {name: in_sight(getattr(dist, name)) for name in _SCATTER if hasattr(dist, name)} | {
        "all_reduce": all_reduce
    }
    with attributes_set([dist], **changes), attributes_set([functional], _maybe_wrap_tensor=wrapped):
        yield
