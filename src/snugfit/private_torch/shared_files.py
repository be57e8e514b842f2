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
    """Writes this process's shares, together with the other processes.

    The files of process N begin with `__N_`; the first one also writes `.metadata`.

    Args:
        folder: Where to.
        tensors: Name -> tensor, of torch's sharded class where several hold it.
        group: The processes; None: all.

    Raises:
        OSError: They could not be written.
    """
    with _as_os_errors(folder):
        save(dict(tensors), storage_writer=FileSystemWriter(folder), process_group=group)


def read_shares(folder: Path, tensors: Mapping[str, torch.Tensor], group: Any, *, alone: bool) -> None:
    """Fills tensors with what `write_shares` wrote, however many processes wrote it.

    Args:
        folder: Where from.
        tensors: Name -> tensor that gets the values, sharded as it is wanted here.
        group: The processes that read together; None: all.
        alone: Whether this one reads alone.

    Raises:
        OSError: They could not be read.
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
    """What torch cannot write or read fails as files do; its warnings are about how it does so."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise OSError(getattr(first, "errno", None) or errno.EIO, str(first), str(folder)) from error
