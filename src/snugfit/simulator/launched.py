"""A script that is one of several processes: the first, as torchrun would start it. The others do not exist.

Its process group is torch's fake one, whose collectives are recorded and carried out by nobody. A script that starts its
processes itself runs what the first of them would run, in its place.
"""

from __future__ import annotations

import multiprocessing.process
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from snugfit.attributes import Change, replaced
from snugfit.errors import CannotSimulateError, InputError
from snugfit.workload import Workload

STARTED_BY_TORCHRUN = "It is one of several processes, as torchrun starts them: say how many before it (--gpus N)."
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
"""What scripts read of what torchrun tells them."""


class Launch:
    """How many processes a script was started in, and how many it trains in."""

    def __init__(self, gpus: int | None = None, nodes: int = 1) -> None:
        """`gpus`: processes on each of `nodes` machines, started by torchrun; None: the script was started alone."""
        self.gpus, self.nodes = gpus, nodes
        self.ranks: int | None = None
        """Processes of the group that the script made; None as long as it made none."""
        self.rank = 0
        """Its own number among them."""

    @contextmanager
    def begun(self, recorder: Any) -> Iterator[None]:
        """Context in which a script's processes are this one, recorded by a recorder."""
        with ExitStack() as around:
            changes = [*self._groups(recorder, around), *_spawns(), *_replicas(), self._agent()]
            if self.gpus is not None:
                os.environ.update(self._environment(self.gpus))
                changes += _processes()
                if recorder.personality.is_card:
                    changes += _cards(self.gpus)
            around.enter_context(replaced(changes))
            yield

    @property
    def workload(self) -> Workload | None:
        """How many processes share the work; None for one."""
        if self.ranks is None or self.ranks == 1:
            return None
        nodes = self.nodes if self.ranks % self.nodes == 0 else 1
        return Workload(gpus=self.ranks // nodes, nodes=nodes)

    def notes(self) -> Iterator[str]:
        """Yields what was asked for and is not so."""
        from snugfit.fake_device.translate import numbers_named

        asked = (self.gpus or 1) * self.nodes
        if self.ranks is None and len(numbers_named) > 1:
            yield (
                f"the script names {' and '.join(f'cuda:{number}' for number in sorted(numbers_named))}: what it puts on "
                "several cards within one process is counted together, as if they were one card."
            )
        if self.gpus is not None and self.ranks is None and asked > 1:
            yield f"{asked} processes were asked for, and the script made no process group: each of them trains alone."
        elif self.gpus is not None and self.ranks not in (None, asked):
            yield f"{asked} processes were asked for, and the script says that there are {self.ranks}."

    def _environment(self, gpus: int) -> dict[str, str]:
        ranks = str(gpus * self.nodes)
        return {
            **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_RESTART_COUNT"), "0"),
            **dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), ranks),
            "LOCAL_WORLD_SIZE": str(gpus), "GROUP_WORLD_SIZE": str(self.nodes), "ROLE_NAME": "default",
            "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }  # fmt: skip

    def _agent(self) -> Change:
        """What starts processes within a program as torchrun does, notebooks' launchers among it: the first runs here."""
        import torch.distributed.launcher.api as launcher

        def launched(config: Any, entrypoint: Any, args: Sequence[Any], **_: Any) -> dict[int, Any]:
            if not callable(entrypoint):
                raise CannotSimulateError(
                    f"the script starts {entrypoint!r} in several processes. Give that one instead."
                )
            if self.gpus is None:
                self.gpus, self.nodes = config.nproc_per_node, config.max_nodes
            os.environ.update(self._environment(self.gpus))
            return {0: entrypoint(*args)}

        return (launcher, "launch_agent", launched)

    def _groups(self, recorder: Any, around: ExitStack) -> list[Change]:
        """What makes the group of all processes: here a fake one."""
        from snugfit.fake_device.personality import DEVICE_TYPE
        from snugfit.fake_device.ranks import alone
        from snugfit.private_torch import one_rank

        def init(
            backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1, rank: int = -1,
            *_: Any, **__: Any,
        ) -> None:  # fmt: skip
            missing = (world_size < 0 and "WORLD_SIZE" not in os.environ) or (rank < 0 and "RANK" not in os.environ)
            if missing:
                raise InputError(f"the script joins a group of processes. {STARTED_BY_TORCHRUN}")
            self.ranks = world_size if world_size >= 0 else int(os.environ["WORLD_SIZE"])
            self.rank = rank if rank >= 0 else int(os.environ["RANK"])
            one_rank.init_alone(self.ranks, self.rank, DEVICE_TYPE)
            around.enter_context(alone(self.gpus))
            recorder.join_ranks()

        return one_rank.groups_by(init)


def _spawns() -> list[Change]:
    """What runs a function in several processes: here as the first of them would."""
    import torch.multiprocessing

    def first(fn: Callable[..., Any], args: Sequence[Any] = (), *_: Any, **__: Any) -> None:
        fn(0, *args)

    owners = (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"])
    return [(owner, name, first) for owner in owners for name in ("spawn", "start_processes")]


def _processes() -> list[Change]:
    """What starts one process after the other: the first runs here."""
    begun: list[Any] = []

    def start(process: Any) -> None:
        begun.append(process)
        if len(begun) == 1:
            process.run()

    base = multiprocessing.process.BaseProcess
    return [(base, "start", start), (base, "join", lambda *_, **__: None)]


def _replicas() -> list[Change]:
    """What refuses models whose copies stand on several cards within this process."""
    from torch.nn import DataParallel

    make = DataParallel.__init__

    def made(model: Any, *args: Any, **settings: Any) -> None:
        make(model, *args, **settings)
        if len(cards := model.device_ids) > 1:
            raise CannotSimulateError(
                f"nn.DataParallel shares each batch out to {len(cards)} cards within one process, which an estimate does "
                "not tell apart. torch recommends DistributedDataParallel in its place, a process for each card: "
                f"--gpus {len(cards)} estimates that. Without it the estimate is that of one card with the whole batch."
            )

    return [(DataParallel, "__init__", made)]


def _cards(count: int) -> list[Change]:
    """What says how many cards a machine has."""
    import torch

    from snugfit.fake_device.accelerator import backend

    return [(owner, "device_count", lambda: count) for owner in (torch.cuda, backend)]


def names_itself(name: str, memory_bytes: int) -> list[Change]:
    """Returns the replacements by which the card says whose it is; scripts choose batches and kernels by that.

    What is free stays more than any script plans with: a model that does not fit is to be seen whole.
    """
    import torch

    from snugfit.fake_device.accelerator import backend
    from snugfit.fake_device.card_properties import card_properties

    def properties(device: Any = None) -> Any:
        found = backend.of_card(card_properties)
        found.name, found.total_memory = name, memory_bytes
        return found

    answers = {"get_device_name": lambda device=None: name, "get_device_properties": properties}
    return [(owner, asked, answer) for owner in (torch.cuda, backend) for asked, answer in answers.items()]
