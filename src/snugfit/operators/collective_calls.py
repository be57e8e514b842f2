"""What a collective's operator sends, as the clock needs it: read off the arguments of torch's `c10d` operators.

A recorder that sees such an operator adds the run that `run_of` returns to its trace. Stream and waits are those of NCCL in
torch:

- asked for with `async_op=True`, it runs in a stream of its group, `after` the last run of the current stream, and
  `work.wait()` makes the stream that is current then wait for it (one more index in `after` of that stream's next run);
- otherwise it runs in the current stream, as everything else does. FSDP2 asks so, from streams of its own.

On a processor the run counts as a copy of its bytes: gloo's times were not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from snugfit.operators.moved_again import tensor_bytes
from snugfit.private_torch import collectives
from snugfit.recording.operator_run import Collective, OperatorRun
from snugfit.techniques.batches import tensors_in

KINDS = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "barrier": ("all_reduce", 0),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0),
    "allgather_": ("all_gather", 0),
    "_allgather_base_": ("all_gather", 0),
    "allgather_coalesced_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "reduce_scatter_": ("reduce_scatter", 1),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all", 1),
    "gather_": ("gather", 0),
    "gather_into_tensor_": ("gather", 0),
    "scatter_": ("scatter", 1),
    "send": ("send", 0),
    "recv_": ("send", 0),
    "recv_any_source_": ("send", 0),
}
"""Operator -> the collective, and which argument holds the whole tensor. Of a gather and a scatter, only the root's does."""


def collective_of(operator: Any, args: Sequence[Any], cards: int | None) -> Collective | None:
    """Returns what an operator of torch's `c10d` sends.

    `cards`: cards in a machine, which ranks fill one machine after the other; None: all ranks are in one.
    The collective; None for an operator that sends nothing that counts.
    """
    found = KINDS.get(operator._opname)
    if found is None:
        return None
    kind, whole = found
    named = collectives.named_arguments(operator, args)
    group = collectives.group_of(named["process_group"])
    ranks = dist.get_process_group_ranks(group)
    if kind == "send":
        other = named.get("dst", named.get("src"))
        ranks = [dist.get_rank(), ranks[other] if other is not None else dist.get_rank()]
    machines = 1 if cards is None else len({rank // cards for rank in ranks})
    tensors = tensors_in((args[whole],)) or tensors_in(args[:2])
    nbytes = sum(map(tensor_bytes, tensors))
    if kind in ("gather", "scatter") and not tensors_in((args[whole],)):
        nbytes *= len(ranks)  # not the root, which has a part of each
    return Collective(kind, nbytes, len(ranks), machines)


def run_of(
    operator: Any,
    args: Sequence[Any],
    cards: int | None,
    *,
    module: str = "",
    phase: str = "",
    stream: int = 0,
    after: tuple[int, ...] = (),
) -> OperatorRun | None:
    """Returns a collective as a run for the clock; arguments as of `collective_of`, and where and when it runs.

    `after`: indices of the runs that it waits for.
    It has `device="ranks"`; None for an operator that sends nothing that counts.
    """
    sent = collective_of(operator, args, cards)
    if sent is None:
        return None
    return OperatorRun(
        operator=str(operator), module=module, phase=phase, flops=0, read_bytes=sent.nbytes, written_bytes=sent.nbytes,
        dtype="uint8", kernels=1, device="ranks", stream=stream, after=after,
        blocking=operator._opname == "barrier", collective=sent,
    )  # fmt: skip


def gloo_bytes(operator: Any, args: Sequence[Any]) -> int:
    """Returns what gloo takes inside itself for a collective on the host: a copy of what is gathered, or scattered.

    Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp (newLikeFlat in AsyncAllgatherWork, clone in
    reduce_scatter_tensor_coalesced). Other collectives work in place.
    """
    kind, whole = KINDS.get(operator._opname, ("", 0))
    copied = tensors_in((args[whole],)) if kind in ("all_gather", "reduce_scatter") else ()
    return sum(tensor.untyped_storage().nbytes() for tensor in copied)
