"""One process of many, simulated: what it tells the others is noted, and what they tell it is taken to be its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch.distributed as dist

from snugfit.fake_device.collective_calls import KINDS
from snugfit.fake_device.operator_costs import tensors_in
from snugfit.fake_device.personality import DEVICE_TYPE
from snugfit.fake_device.replaced import replaced
from snugfit.private_torch import collectives

_cards: ContextVar[int | None] = ContextVar("cards", default=None)


@contextmanager
def one_of(ranks: int, number: int, cards: int) -> Iterator[None]:
    """Makes this process one of several that torch knows of, without the others.

    Args:
        ranks: How many.
        number: Which of them; 0 has the largest share of everything.
        cards: How many are in one machine.

    Yields:
        Nothing.
    """
    if ranks == 1:
        yield
        return
    collectives.init_alone(ranks, number, DEVICE_TYPE)
    before = _cards.set(cards)
    try:
        with replaced(
            [*collectives.meshes_with_numbers(), collectives.only_own_chunks(), collectives.shares_by_storage()]
        ):
            yield
    finally:
        _cards.reset(before)
        dist.destroy_process_group()


def cards_of_machine() -> int | None:
    """Returns how many of the simulated processes are in one machine; None where nobody has said."""
    return _cards.get()


def runs_beside(operator: Any, args: Sequence[Any]) -> str:
    """Returns the group in whose stream a collective runs, beside its caller; empty for one in the caller's stream.

    Args:
        operator: The overload.
        args: Its positional arguments, fake tensors.
    """
    named = collectives.named_arguments(operator, args)
    return str(collectives.group_of(named["process_group"]).group_name) if named.get("async_op", True) else ""


def issued(operator: Any, args: Sequence[Any], waited: Callable[[], None], *, beside: bool) -> Any:
    """Returns what a collective returns that nobody carries out.

    Args:
        operator: The overload.
        args: Its positional arguments, fake tensors.
        waited: Called when its work is waited for.
        beside: Whether it runs beside its caller. NCCL's work then keeps its tensors until it is waited for.
    """
    kept = tensors_in(args) if beside else []

    def wait() -> None:
        kept.clear()
        waited()

    return collectives.result_of(operator, args, wait)


def gloo_bytes(operator: Any, args: Sequence[Any]) -> int:
    """Returns what gloo takes inside itself for a collective on the host: a copy of what is gathered, or scattered.

    Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp (newLikeFlat in AsyncAllgatherWork, clone in
    reduce_scatter_tensor_coalesced). Other collectives work in place.

    Args:
        operator: The overload.
        args: Its positional arguments.
    """
    kind, whole = KINDS.get(operator._opname, ("", 0))
    copied = tensors_in((args[whole],)) if kind in ("all_gather", "reduce_scatter") else ()
    return sum(tensor.untyped_storage().nbytes() for tensor in copied)
