"""Streams of a pretend card: work waits in queues until somebody has to see its result.

A real card carries out what is queued as early as it can, so a wait that was forgotten mostly does no harm. Here work is
carried out as late as events, waits and the host allow, and now and then some of it earlier, drawn by a seed. So a copy
that nobody waited for has not happened yet when its result is read, and a block that was handed out too early is
overwritten before its last reader comes.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

DEPTH = 2000
"""Entries of a queue after which its older half is carried out, as a driver makes the host wait when a queue is full."""
EARLY = 0.02
"""Chance at each new entry that some stream is let go on for a while."""
_cards = itertools.count()
"""Gives each card a number."""


class QueueMark(NamedTuple):
    """A place in a stream's queue: behind all that was queued so far."""

    stream: int
    """The stream's number."""
    entry: int
    """How many entries came before."""
    card: int
    """Whose queue it is: what another card had queued is done, and tensors that outlive it may ask."""


class Streams:
    """The queues of one card."""

    def __init__(self, seed: int = 0, *, eager: bool = False) -> None:
        """Starts with nothing queued; `seed` draws the order in which streams go on, `eager` runs work at once."""
        self._card = next(_cards)
        self._random = random.Random(seed)
        self._eager = eager
        self._queues: dict[int, deque[Callable[[], object] | QueueMark]] = {}
        self._done: dict[int, int] = {}

    def put(self, stream: int, work: Callable[[], object]) -> None:
        """Queues work on a stream; it is called once, when its turn has come."""
        if self._eager:
            work()
            return
        queue = self._queue(stream)
        queue.append(work)
        # Work holds the tensors that it needs, so a queue must not grow without an end.
        if len(queue) > DEPTH:
            self._finish_first(stream, DEPTH // 2)
        # Now and then some stream goes on, as a real card may: not only the latest order is tried.
        elif self._random.random() < EARLY:
            other = self._random.choice(list(self._queues))
            self._finish_first(other, self._random.randrange(len(self._queues[other]) + 1))

    def mark(self, stream: int) -> QueueMark:
        """Returns the place behind all that is queued on a stream."""
        entry = 0 if self._eager else self._done.get(stream, 0) + len(self._queues.get(stream, ()))
        return QueueMark(stream, entry, self._card)

    def wait(self, stream: int, mark: QueueMark) -> None:
        """Makes what is queued on a stream from now on wait for a mark."""
        if not self._eager and mark.stream != stream and not self.reached(mark):
            self._queue(stream).append(mark)

    def reached(self, mark: QueueMark) -> bool:
        """Returns whether all before a mark is carried out."""
        return self._eager or mark.card != self._card or self._done.get(mark.stream, 0) >= mark.entry

    def finish(self, mark: QueueMark) -> None:
        """Runs what is before a mark, and of other streams what that waits for."""
        if self._eager:
            return
        waiting = [mark]
        while waiting:
            stream, entry, _ = waiting[-1]
            queue = self._queues.get(stream)
            if not queue or self._done[stream] >= entry:
                waiting.pop()
                continue
            # A wait at the head of a queue is not passed before the other stream is: that one goes first.
            work = queue[0]
            if isinstance(work, QueueMark) and not self.reached(work):
                waiting.append(work)
                continue
            queue.popleft()
            self._done[stream] += 1
            if not isinstance(work, QueueMark):
                work()

    def _finish_first(self, stream: int, entries: int) -> None:
        self.finish(QueueMark(stream, self._done[stream] + entries, self._card))

    def finish_all(self) -> None:
        """Runs all that is queued."""
        for stream in self._random.sample(list(self._queues), len(self._queues)):
            self.finish(self.mark(stream))

    def _queue(self, stream: int) -> deque[Callable[[], object] | QueueMark]:
        if stream not in self._queues:
            self._queues[stream], self._done[stream] = deque(), 0
        return self._queues[stream]
