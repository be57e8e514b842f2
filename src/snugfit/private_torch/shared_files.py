"""Checkpoints that several processes write and read together, as torch.distributed.checkpoint lays them out."""

from __future__ import annotations

import contextlib
import errno
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save


def write_shares(folder: Path, tensors: Mapping[str, torch.Tensor], group: Any) -> None:
    """Writes this process's shares (name -> tensor) with the other processes.

    The files of process N begin with `__N_`; the first one also writes `.metadata`.

    `group`: the processes; None: all.
    """
    with _as_os_errors(folder):
        save(dict(tensors), storage_writer=FileSystemWriter(folder), process_group=group)


def read_shares(folder: Path, tensors: Mapping[str, torch.Tensor], group: Any, *, alone: bool) -> None:
    """Fills tensors, sharded as wanted here, with what `write_shares` wrote, by however many processes.

    `group`: the processes that read together; None: all.
    `alone`: whether this one reads alone.
    """
    with _as_os_errors(folder):
        load(dict(tensors), storage_reader=FileSystemReader(folder), process_group=group, no_dist=alone)


def written_shares(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Returns name -> whole size and dtype of what `write_shares` wrote."""
    found = {}
    for name, meta in FileSystemReader(folder).read_metadata().state_dict_metadata.items():
        assert isinstance(meta, TensorStorageMetadata), name
        found[name] = (meta.size, meta.properties.dtype)
    return found


@contextlib.contextmanager
def _as_os_errors(folder: Path) -> Iterator[None]:
    """Context that turns torch's failed reads and writes into `OSError`, and hides its warnings about them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise OSError(getattr(first, "errno", None) or errno.EIO, str(first), str(folder)) from error
