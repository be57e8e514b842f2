"""One process of many, simulated: what it tells the others is noted, and what they tell it is taken to be its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist

from snugfit.attributes import replaced
from snugfit.fake_device.personality import DEVICE_TYPE
from snugfit.private_torch import collectives, one_rank
from snugfit.techniques.batches import tensors_in

_cards: ContextVar[int | None] = ContextVar("cards", default=None)


@contextmanager
def one_of(ranks: int, number: int, cards: int) -> Iterator[None]:
    """Context in which torch takes this process for one of `ranks`, with `cards` in a machine; the others do not exist.

    `number`: which of them; 0 has the largest share of everything.
    """
    if ranks == 1:
        yield
        return
    one_rank.init_alone(ranks, number, DEVICE_TYPE)
    with alone(cards):
        yield


@contextmanager
def alone(cards: int | None) -> Iterator[None]:
    """Context in which a process group has this process only, and is gone at the end; `cards`: those of a machine."""
    before = _cards.set(cards)
    changes = [*one_rank.meshes_with_numbers(), one_rank.only_own_chunks(), *one_rank.shares_by_storage()]
    try:
        with replaced([*changes, *one_rank.unverified()]):
            yield
    finally:
        _cards.reset(before)
        if dist.is_initialized():
            dist.destroy_process_group()


def cards_of_machine() -> int | None:
    """Returns how many simulated processes share a machine; None where nobody has said."""
    return _cards.get()


def runs_beside(operator: Any, args: Sequence[Any]) -> str:
    """Returns the group on whose stream a collective runs; empty where it runs on its caller's stream."""
    named = collectives.named_arguments(operator, args)
    return str(collectives.group_of(named["process_group"]).group_name) if named.get("async_op", True) else ""


def issued(
    operator: Any,
    args: Sequence[Any],
    waited: Callable[[], None],
    in_buckets: Callable[[list[torch.Tensor]], None],
    *,
    beside: bool,
) -> Any:
    """Returns what a collective returns that nobody carries out; `waited` is called when its work is waited for.

    `in_buckets`: gets its tensors where they are DDP's buckets of gradients.
    `beside`: whether it runs beside its caller. NCCL's work then keeps its tensors until it is waited for.
    """
    kept = tensors_in(args) if beside else []

    def wait() -> None:
        kept.clear()
        waited()

    def future() -> list[torch.Tensor]:
        in_buckets(kept)
        return list(kept)

    return collectives.result_of(operator, args, wait, future)
