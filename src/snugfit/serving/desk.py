"""Questions that are worked on one at a time, in warm workers; a newer one of the same tab takes an older one's place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from snugfit.workers.pool import Cancelled, Pool

Answer = Callable[[Mapping[str, str], Pool, Pool], Iterator[Mapping[str, Any]]]
"""Takes what was asked, a warm worker for what takes seconds, and workers for what takes longer; yields what is sent, as it
is found. The second end when nobody waits any more; the first goes on to the end of what it does, and stays warm."""
MOST_WAITING = 8
"""Questions that may wait; another one is refused."""
_WORKERS = 2
"""Workers for what takes longer."""


class BusyError(Exception):
    """Too many questions wait already."""


class Question:
    """One question, from its arrival to its end."""

    def __init__(self) -> None:
        """Nothing is done about it yet."""
        self.ended = threading.Event()
        self._cancelled = threading.Event()
        self._pool: Pool | None = None
        self._lock = threading.Lock()

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answer."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Gives it up, at once; from any thread."""
        with self._lock:
            self._cancelled.set()
            if self._pool is not None:
                self._pool.cancel()

    def begin(self, pool: Pool) -> None:
        """Says which workers work on it from now on; raises `Cancelled` where it was given up."""
        with self._lock:
            if self.cancelled:
                raise Cancelled
            self._pool = pool

    def end(self) -> None:
        """Lets go of the workers."""
        with self._lock:
            self._pool = None
        self.ended.set()


class Desk:
    """Where questions are worked on."""

    def __init__(self, answer: Answer) -> None:
        """Starts the worker that answers at once."""
        self._answer = answer
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._waiting = 0
        self._of_tab: dict[str, Question] = {}
        self._warm, self._search = Pool(1), Pool(_WORKERS)
        self._warm.start()

    def warm_up(self, function: Callable[..., Any], *args: Any) -> None:
        """Runs something in the warm worker before anything is asked; raises what it raises."""
        self._warm.call(function, *args)

    def ask(
        self, tab: str, question: Question, asked: Mapping[str, str], send: Callable[[Mapping[str, Any]], None]
    ) -> None:
        """Works on a question when its turn comes, and sends what is found; `Cancelled` where it is given up.

        `tab`: who asks; an older question of the same one is cancelled.
        """
        with self._lock:
            if (older := self._of_tab.get(tab)) is not None:
                older.cancel()
            if self._waiting >= MOST_WAITING:
                raise BusyError
            self._of_tab[tab] = question
            self._waiting += 1
        try:
            while not self._turn.acquire(timeout=0.05):
                if question.cancelled:
                    raise Cancelled
            try:
                self._work(question, asked, send)
            finally:
                self._turn.release()
        finally:
            with self._lock:
                self._waiting -= 1
                if self._of_tab.get(tab) is question:
                    del self._of_tab[tab]
            question.end()

    def _work(self, question: Question, asked: Mapping[str, str], send: Callable[[Mapping[str, Any]], None]) -> None:
        try:
            question.begin(self._search)
            for found in self._answer(asked, self._warm, self._search):
                if question.cancelled:
                    raise Cancelled
                send(found)
        finally:
            question.end()
            if self._search.cancelled:
                self._search = Pool(_WORKERS)

    def close(self) -> None:
        """Gives everything up and ends the workers."""
        with self._lock:
            questions = list(self._of_tab.values())
        for question in questions:
            question.cancel()
        for pool in (self._warm, self._search):
            pool.cancel()
