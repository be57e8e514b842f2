"""Several pretend cards, one a process: collectives between them are carried out by gloo when a stream comes to them.

As with NCCL, a collective goes into a stream of its process group, behind all that the calling stream has queued, and
`work.wait()` lets the current stream wait for it, not the host. So who forgets to wait reads what was there before.

A queue that comes to a collective stops the host until the other ranks come to theirs. Their queues are as lazy and go on in
another order, and two ranks that stop at different collectives would stop for good. So a process carries out its collectives
in the order in which they were issued, those of all groups: the earliest that is not done is then always one at which every
rank arrives. For the same reason all of them are carried out before the host itself waits for other ranks (for a
collective of host tensors, a new group, the end). What this takes away: a collective of one group cannot overtake
one of another group, as on a card it may.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from snugfit import private_torch
from snugfit.fake_device.accelerator import Stream
from snugfit.fake_device.personality import DEVICE_TYPE
from snugfit.pretend_card.streams import QueueMark, Streams
from snugfit.pretend_card.values import arguments
from snugfit.private_torch import collectives
from snugfit.techniques.batches import tensors_in

BACKEND = "pretend"
"""Name of the process group between pretend cards: `init_process_group("pretend")`."""


@functools.cache
def register() -> None:
    """Registers the process group with `torch.distributed`, where that has gloo; a second call does nothing."""
    if torch.distributed.is_gloo_available():
        collectives.register_process_group(BACKEND, DEVICE_TYPE)


class CardRanks:
    """A card's connections to those of other processes."""

    def __init__(self, streams: Streams, find: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Starts with no collective; `find` returns the CPU tensor with a tensor's numbers."""
        self._streams = streams
        self._find = find
        self._streams_of_groups: dict[str, int] = {}
        self._last: QueueMark | None = None
        self._sent: list[Any] = []

    def issue(self, operator: Any, args: Sequence[Any], current: Callable[[], int]) -> Any:
        """Queues a collective on card tensors, and returns what the operator returns.

        `current`: returns the current stream, now and when the collective is waited for.
        """
        named = collectives.named_arguments(operator, args)
        group = collectives.group_of(named["process_group"])
        stream = self._streams_of_groups.get(group.group_name)
        if stream is None:
            stream = self._streams_of_groups[group.group_name] = Stream().number
        self._streams.wait(stream, self._streams.mark(current()))
        if self._last is not None:
            # In the order of issue, whatever the group: the docstring of this file says why.
            self._streams.wait(stream, self._last)
        # NCCL's work keeps the tensors of a collective that runs beside its caller, until it is waited for.
        kept = tensors_in(args) if named.get("async_op", True) else []
        averages = "reduce_op" in named and collectives.is_average(named["reduce_op"])
        if averages:  # which gloo does not know
            named["reduce_op"] = collectives.sum_of_ranks()
        own = arguments(list(named.values()), self._find)
        over = group.size() if averages else 1
        self._streams.put(stream, functools.partial(self._carry_out, operator, own, over, kept))
        mark = self._last = self._streams.mark(stream)

        def wait() -> None:
            self._streams.wait(current(), mark)
            if operator._opname == "barrier":
                with private_torch.without_modes():
                    self._streams.finish(mark)
            kept.clear()

        return collectives.result_of(operator, args, wait)

    def finish(self) -> None:
        """Carries out all collectives that were issued."""
        if self._last is not None:
            self._streams.finish(self._last)

    def leave(self) -> None:
        """Carries out all collectives, and waits until what was sent has left this process."""
        self.finish()
        while self._sent:
            self._sent.pop().wait()

    def _carry_out(self, operator: Any, args: list[Any], over: int, kept: list[torch.Tensor]) -> None:
        """Does a collective whose turn has come, on CPU tensors; keeps alive what must live until then."""
        if operator._opname == "send":  # two ranks that send to each other first would wait for each other
            copies = [tensor.clone() for tensor in args[0]]
            self._sent.append(collectives.start(operator, [copies, *args[1:]]))
            return
        collectives.start(operator, args).wait()
        if over > 1:
            for output in tensors_in(args[:1]):
                output.div_(over)
