"""Processes that stand for ranks, started once and given one thing after the other to do together."""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import patience

SECONDS = patience.SECONDS
"""After which ranks that do not answer are ended."""


def _serve(rank, world, ends):
    # Where the modules of tasks are found; and by what ranks know one another that hand tensors over.
    sys.path[:], multiprocessing.current_process().authkey = ends.recv()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch

    torch.set_num_threads(1)
    while True:
        task = ends.recv()
        if task is None:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
            return
        function, arguments = task
        try:
            ends.send((True, function(rank, world, *arguments)))
        except Exception:
            ends.send((False, traceback.format_exc()))
            return  # its card may be in any state, and other ranks wait for it in vain


class Ranks:
    """Processes that do one thing after the other together."""

    def __init__(self, world):
        """Names their number; they are started when needed, and again after one failed."""
        self.world = world
        self._ends, self._processes = [], []
        self._folder, self._done = None, 0

    def _start(self):
        self._folder, self._done = tempfile.TemporaryDirectory(), 0  # groups that stay meet in it again
        for rank in range(self.world):
            ours, theirs = multiprocessing.Pipe()
            words = [str(word) for word in (rank, self.world, theirs.fileno())]
            command = [sys.executable, "-m", "rank_processes", *words]
            started = subprocess.Popen(command, cwd=Path(__file__).parent, pass_fds=[theirs.fileno()])
            self._processes.append(started)
            theirs.close()
            ours.send((sys.path, bytes(multiprocessing.current_process().authkey)))
            self._ends.append(ours)

    def do(self, function, *arguments):
        """Returns what a function returned on each rank; it gets a place to meet before its arguments."""
        if not self._processes:
            self._start()
        meeting, self._done = str(Path(self._folder.name) / f"meeting-{self._done}"), self._done + 1
        for ends in self._ends:
            ends.send((function, (meeting, *arguments)))
        answers = [self._answer(ends) for ends in self._ends]
        failed = [f"rank {rank}: {said}" for rank, (well, said) in enumerate(answers) if not well]
        if failed:
            self.end()
            raise AssertionError("\n".join(failed))
        return [said for _, said in answers]

    def _answer(self, ends):
        try:
            return ends.recv() if ends.poll(SECONDS) else (False, "does not answer")
        except EOFError:
            return False, "is gone"

    def end(self):
        """Ends the processes."""
        for ends, process in zip(self._ends, self._processes, strict=True):
            with contextlib.suppress(OSError):
                ends.send(None)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
            process.kill()
            process.wait()
            ends.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._ends, self._processes = [], []


@contextlib.contextmanager
def card_among_others(rank, world, meeting, seed, **card):
    """This rank's card, with a process group over all ranks; yields the card."""
    import torch.distributed as dist

    from snugfit.pretend_card.present import card_present

    with card_present(None, seed=100 * seed + rank, **card) as present:
        dist.init_process_group(
            "pretend",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=SECONDS),
        )
        yield present
        dist.destroy_process_group()  # not after an error: others may wait for this rank, and learn of it when it is gone


if __name__ == "__main__":
    number, among, file = map(int, sys.argv[1:])
    with contextlib.suppress(EOFError):  # who asks is gone
        _serve(number, among, Connection(file))
