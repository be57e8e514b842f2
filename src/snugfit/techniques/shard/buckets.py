"""Gradients of processes that each hold all parameters, added up in buckets beside backward, whoever has which.

As in torch's DistributedDataParallel, a bucket is sent when this process has all of its gradients, and never before the one
ahead of it: so all processes send the same buckets in the same order, whatever their samples went through. Who has no
gradient of a parameter sends zeros. What some process had no gradient of is sent alone from then on, at the end of backward
and where anybody has one, so that the others need not wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

if TYPE_CHECKING:
    from snugfit.techniques.shard.ranks import Ranks

BUCKET_BYTES = 25 * 2**20
"""Source: `bucket_cap_mb` of torch.nn.parallel.DistributedDataParallel."""


class Buckets:
    """The gradients of one process on their way to the sum."""

    def __init__(
        self,
        ranks: Ranks,
        dtype: torch.dtype | None,
        take: Callable[[nn.Parameter], Tensor | None],
        give: Callable[[nn.Parameter, Tensor], None],
    ) -> None:
        """Remembers how gradients are taken and given; knows no parameter yet.

        `dtype`: format in which gradients are added up; None: each in its own.
        `take`: takes a parameter's gradient away from it; None where this process has none.
        `give`: is given what all processes have of a gradient together.
        """
        self._ranks, self._dtype, self._take, self._give = ranks, dtype, take, give
        self._shares: dict[nn.Parameter, Tensor] = {}
        self._order: list[nn.Parameter] = []
        self._apart: set[nn.Parameter] = set()
        self._sparse: set[nn.Parameter] = set()
        self._arrived: dict[nn.Parameter, None] = {}
        self._ordered = False
        self._planned: list[list[nn.Parameter]] | None = None
        self._bucket_of: dict[nn.Parameter, int] = {}
        self._lacking: list[int] = []
        self._sent = 0
        self._sending: deque[tuple[list[nn.Parameter], list[Tensor], Tensor, Any]] = deque()
        self._had: set[nn.Parameter] = set()
        self._unsure: list[tuple[nn.Parameter, Tensor]] = []

    def __contains__(self, weight: nn.Parameter) -> bool:
        """Whether a parameter is one of them."""
        return weight in self._shares

    def add(self, weight: nn.Parameter, share: Tensor, *, sparse: bool) -> None:
        """Registers a parameter; `share` has the shape and layout of its gradient in this process."""
        self._shares[weight] = share
        self._order.insert(0, weight)  # what a model makes last gets its gradient first, mostly
        if sparse:
            self._sparse.add(weight)
        if sparse or not weight.requires_grad:
            self._apart.add(weight)
        self._planned = None

    def begin(self) -> None:
        """Begins a backward pass."""
        if self._planned is None:
            self._planned = list(self._cut(weight for weight in self._order if weight not in self._apart))
            self._bucket_of = {weight: number for number, bucket in enumerate(self._planned) for weight in bucket}
        self.forget()
        self._lacking = [len(bucket) for bucket in self._planned]

    def forget(self) -> None:
        """Drops what a failed pass has left behind."""
        self._sent = 0
        self._arrived.clear()
        self._had.clear()
        self._unsure.clear()
        self._sending.clear()

    def arrived(self, weight: nn.Parameter) -> None:
        """Notes that a parameter has its gradient, and sends the buckets that are complete."""
        number = self._bucket_of.get(weight)
        if weight in self._arrived:
            return
        self._arrived[weight] = None
        if number is None:
            return
        assert self._planned is not None
        self._lacking[number] -= 1
        while self._sent < len(self._planned) and not self._lacking[self._sent]:
            self._send(self._planned[self._sent])
            self._sent += 1

    def finish(self) -> None:
        """Sends the rest; every process comes here after its backward pass."""
        assert self._planned is not None
        while self._sent < len(self._planned):
            self._send(self._planned[self._sent])
            self._sent += 1
        self._receive(0)
        # One message for three questions: of which parameters has some process a gradient, of which has some process
        # none, and of which is one still waiting with its parameter (those that no bucket takes any more).
        left = [weight.grad is not None for weight in self._order]
        had = [weight in self._had or there for weight, there in zip(self._order, left, strict=True)]
        told = self._ranks.any_of([*had, *(not here for here in had), *left])
        count = len(self._order)
        somewhere = {weight for weight, there in zip(self._order, told[:count], strict=True) if there}
        lacked = {weight for weight, there in zip(self._order, told[count : 2 * count], strict=True) if there}
        unsure, self._unsure = self._unsure, []
        for weight, total in unsure:
            if weight in somewhere:
                self._give(weight, total)
        del unsure
        for bucket in self._cut(weight for weight, there in zip(self._order, told[2 * count :], strict=True) if there):
            self._had.update(bucket)
            self._send(bucket)
        self._receive(0)
        self._learn(lacked)

    def _learn(self, lacked: set[nn.Parameter]) -> None:
        """After the first pass: orders buckets as the first process's gradients came; drops parameters that some lacked."""
        if not self._ordered:
            self._ordered, self._planned = True, None
            place = {weight: number for number, weight in enumerate(self._arrived)}
            mine = [float(place.get(weight, len(place))) for weight in self._order]
            first = dict(zip(self._order, self._ranks.agree(mine)[0], strict=True))
            self._order.sort(key=first.__getitem__)
        if not lacked <= self._apart:
            self._apart |= lacked
            self._planned = None

    def _cut(self, weights: Iterable[nn.Parameter]) -> Iterable[list[nn.Parameter]]:
        """Buckets of parameters of one dtype, in order; one that cannot share a flat tensor gets a bucket of its own."""
        filling: dict[torch.dtype, tuple[list[nn.Parameter], int]] = {}
        for weight in weights:
            share = self._shares[weight]
            if weight in self._sparse:
                yield [weight]
                continue
            nbytes = share.numel() * share.element_size()
            bucket, filled = filling.get(share.dtype, ([], 0))
            if bucket and filled + nbytes > BUCKET_BYTES:
                yield bucket
                bucket, filled = [], 0
            filling[share.dtype] = [*bucket, weight], filled + nbytes
        yield from (bucket for bucket, _ in filling.values())

    def _send(self, bucket: list[nn.Parameter]) -> None:
        gradients = [self._take(weight) for weight in bucket]
        self._had.update(weight for weight, gradient in zip(bucket, gradients, strict=True) if gradient is not None)
        flat, pieces = self._packed(bucket, gradients)
        del gradients
        # With `hybrid` there are two groups in a row. Only the last sum runs beside backward.
        *first, last = self._ranks.alike
        for group in first:
            dist.all_reduce(flat, group=group)
        self._sending.append((bucket, pieces, flat, dist.all_reduce(flat, group=last, async_op=True)))
        self._receive(1)

    def _packed(self, bucket: list[nn.Parameter], gradients: Sequence[Tensor | None]) -> tuple[Tensor, list[Tensor]]:
        """One flat tensor to send, and views of it in the layout of each parameter."""
        shares = [self._shares[weight] for weight in bucket]
        if bucket[0] in self._sparse:
            rows = gradients[0]
            if rows is None:
                rows = torch.zeros_like(shares[0]).to_sparse(1)
            rows = rows.coalesce()
            return rows, [rows]
        dtype = self._dtype or shares[0].dtype
        alone = gradients[0] if len(bucket) == 1 else None
        if alone is not None and alone.dtype == dtype and alone.is_contiguous():
            return alone, [alone]
        flat = torch.empty(sum(share.numel() for share in shares), dtype=dtype, device=shares[0].device)
        pieces = [
            piece.as_strided(share.shape, share.stride(), piece.storage_offset())
            for piece, share in zip(torch.split(flat, [share.numel() for share in shares]), shares, strict=True)
        ]
        for piece, gradient in zip(pieces, gradients, strict=True):
            if gradient is None:
                piece.zero_()
        there = [(piece, gradient) for piece, gradient in zip(pieces, gradients, strict=True) if gradient is not None]
        if there:
            torch._foreach_copy_([piece for piece, _ in there], [gradient for _, gradient in there])
        return flat, pieces

    def _receive(self, most: int) -> None:
        """Waits until no more than this many buckets are under way."""
        while len(self._sending) > most:
            bucket, pieces, flat, work = self._sending.popleft()
            work.wait()
            del flat
            while pieces:
                weight, piece = bucket[-len(pieces)], pieces.pop(0)
                if weight in self._had:
                    self._give(weight, piece)
                else:  # perhaps nobody has: that is known when all are through
                    self._unsure.append((weight, piece))
