"""One process of many, simulated: what it tells the others is noted, and what they tell it is taken to be its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from snugfit.fake_device.operator_costs import tensors_in
from snugfit.fake_device.personality import DEVICE_TYPE
from snugfit.private_torch import collectives


@contextmanager
def one_of(ranks: int, number: int) -> Iterator[None]:
    """Makes this process one of several that torch knows of, without the others.

    Args:
        ranks: How many.
        number: Which of them; 0 has the largest share of everything.

    Yields:
        Nothing.
    """
    if ranks == 1:
        yield
        return
    collectives.init_alone(ranks, number, DEVICE_TYPE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def issued(operator: Any, args: Sequence[Any]) -> Any:
    """Returns what a collective returns that nobody carries out.

    Args:
        operator: The overload.
        args: Its positional arguments, fake tensors.
    """
    names = [argument.name for argument in operator._schema.arguments]
    named = dict(zip(names, args, strict=False))
    # NCCL's work keeps the tensors of a collective that runs beside its caller, until it is waited for.
    kept = tensors_in(args) if named.get("async_op", True) else []
    return collectives.result_of(operator, args, kept.clear)
