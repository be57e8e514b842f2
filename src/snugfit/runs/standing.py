"""Where a process stands among those that were started with it, and where they meet, by its environment.

A process is one of several when whoever started it says so: `torchrun` and torch elastic (by which `snugfit train --gpus`
starts them), SLURM's srun, or anything that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Imports no torch.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

from snugfit.errors import InputError, option

STARTED_BY_US = "snugfit-"
"""Prefix of the name of a run of torch elastic that `launching.py` has started."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """The position of a process among those that were started with it."""

    number: int
    count: int
    local_number: int
    local_count: int
    ours: bool
    """Whether `launching.py` has started it."""

    @property
    def settings(self) -> dict[str, int]:
        """The workload's `gpus` and `nodes`."""
        if self.count % self.local_count:
            return {"gpus": self.count, "nodes": 1}
        return {"gpus": self.local_count, "nodes": self.count // self.local_count}


def rank_here() -> Rank | None:
    """Returns this process's position, by its environment; None where it was started alone."""
    found = _numbers("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if found is None:  # tasks of each machine as in `4(x2)`; what was asked for is set only where it was
        each = ("SLURM_NTASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
        found = _numbers("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", next(filter(os.environ.get, each), each[0]))
    if found is None or found[1] == 1:
        return None
    ours = os.environ.get("TORCHELASTIC_RUN_ID", "").startswith(STARTED_BY_US)
    return Rank(number=found[0], count=found[1], local_number=found[2], local_count=found[3], ours=ours)


def by_elastic() -> bool:
    """Returns whether torch elastic has started the processes, and holds the store where they meet."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _numbers(number: str, count: str, local: str, locals_: str) -> tuple[int, int, int, int] | None:
    told = [re.match(r"\d+", os.environ.get(name, "")) for name in (number, count, local, locals_)]
    if told[0] is None or told[1] is None:
        return None
    here, every = int(told[0][0]), int(told[1][0])
    if here >= every:
        raise InputError(f"{number} is {here} and {count} is {every}; the first is counted from 0 and must be smaller.")
    return here, every, int(told[2][0]) if told[2] else here, int(told[3][0]) if told[3] else every


def where_to_meet(rank: Rank, rdzv: str | None) -> dict[str, str]:
    """Returns the variables by which torch finds the others, those that are not set; `rdzv` is HOST:PORT."""
    known = os.environ
    told = {"RANK": str(rank.number), "WORLD_SIZE": str(rank.count)}
    if "MASTER_ADDR" in known and "MASTER_PORT" in known:
        return told
    if rdzv is not None:
        host, _, port = rdzv.rpartition(":")
    elif "SLURM_JOB_ID" in known:
        host, port = (
            first_host(known.get("SLURM_STEP_NODELIST") or known.get("SLURM_JOB_NODELIST") or "localhost"),
            str(20000 + int(known["SLURM_JOB_ID"]) % 20000),
        )
    else:
        raise InputError(
            f"{rank.count} processes were started, and nobody says where they meet; give {option('rdzv HOST:PORT')}."
        )
    return {**told, "MASTER_ADDR": host, "MASTER_PORT": port}


def first_host(nodes: str) -> str:
    """Returns the first of SLURM's hosts: node01 of `node[01-04,7],other`."""
    first = re.match(r"(?:[^\[,]|\[[^\]]*\])+", nodes)
    return nodes if first is None else re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])


def agreed_options(rank: Rank, options: Mapping[str, Any]) -> dict[str, int]:
    """Returns `gpus` and `nodes` as processes were started; `InputError` where others were asked for."""
    there = rank.settings
    for name, value in there.items():
        wanted = options.get(name)
        if (
            wanted is not None
            and int(wanted) != value
            and (name == "gpus" or int(wanted) * there["gpus"] != rank.count)
        ):
            raise InputError(
                f"{option(name)} {wanted} was asked for, and {rank.count} processes were started, {there['gpus']} on each "
                f"of {there['nodes']} machines. Leave it out: whoever starts the processes has said it already."
            )
    return there
