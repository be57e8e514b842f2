"""Checkpoints that several processes write together, and that any number of processes reads.

A checkpoint of one process is a file (`checkpoint.py`); of several it is a folder: the shares of weights and optimizer state
as torch.distributed.checkpoint writes them, and a small file for each process with the rest, and with the checksums of what
that process has written. The folder is written under another name, which only a whole one loses. What is read is put where
this run wants it: shares of another size, all of it in one process, or a file of one process shared out.

State in fewer bits is packed by share, so it is read by as many processes as have written it, sharing in the same way.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from snugfit.atomic_file import TEMPORARY_PREFIX, flush
from snugfit.device_kinds import CPU
from snugfit.errors import InputError
from snugfit.private_torch.shared_files import read_shares, write_shares, written_shares
from snugfit.runs.checkpoint import DamagedCheckpointError, load_checkpoint, save_checkpoint
from snugfit.techniques.batch_share import sharers
from snugfit.techniques.own_optimizer import STORAGE
from snugfit.techniques.shard import group_size
from snugfit.techniques.shard.apply import local
from snugfit.training.other_model import OtherModelError, check_shapes, shapes
from snugfit.training.shares import layouts, share_of_whole, spread_as

if TYPE_CHECKING:
    from snugfit.training.trainer import Trainer

_MODEL = "model."
"""Beginning of the names of the model's tensors among those that are written together."""
_PACKED = "packed_by"
"""Key of the number of processes, and of those that share a weight, where state is packed by share."""


class Parts:
    """This process's part in writing and reading the run's checkpoints."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._ranks = trainer, trainer.ranks
        self._number, self._count = (0, 1) if self._ranks is None else (self._ranks.number, self._ranks.count)
        self._mesh: DeviceMesh | None = None

    @property
    def together(self) -> bool:
        """Whether several processes save together."""
        return self._ranks is not None

    @property
    def first(self) -> bool:
        """Whether this process names and removes files, as a single process does."""
        return self._number == 0

    def any(self, here: bool) -> bool:
        """Returns whether a flag is set in any process; all wait for each other here."""
        return here if self._ranks is None else any(value for (value,) in self._ranks.agree([here]))

    # -- writing

    def save(self, path: Path, state: Mapping[str, Any]) -> None:
        """Writes a checkpoint folder with the other processes, complete or not at all; `state` is from `Course.state`."""
        folder = path.with_name(TEMPORARY_PREFIX + path.name)
        if self.first:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        self.any(False)
        # `any` waits for all: nobody writes before the folder is there, and it gets its name when all have written.
        tensors, rest = self._taken_apart(state)
        write_shares(folder, tensors, self._group)
        written = [*folder.glob(f"__{self._number}_*"), *(folder.glob(".metadata") if self.first else ())]
        digests = {one.name: _digest(one) for one in written}
        save_checkpoint(_rest_of(folder, self._number), {**rest, "digests": digests, "processes": self._count})
        self.any(False)
        if self.first:
            shutil.rmtree(path, ignore_errors=True)
            folder.replace(path)
            flush(path.parent)
        self.any(False)

    def _taken_apart(self, state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state in two: what torch writes share by share, and the rest."""
        trained = state["trainer"]
        model, weights = layouts(self._trainer)
        tensors = {f"model.{name}": self._on_host(value) for name, value in model.items() if isinstance(value, Tensor)}
        others = {name: value for name, value in model.items() if not isinstance(value, Tensor)}
        packed, kept = self._packed_by(), {}
        for number, values in trained["optimizer"]["state"].items():
            layout = weights[number]
            by_element = {} if packed else {key: one for key, one in values.items() if _lies_as(one, layout)}
            for key, one in by_element.items():
                tensors[f"optimizer.{number}.{key}"] = self._on_host(one, layout)
            kept[number] = {key: one for key, one in values.items() if key not in by_element}
        optimizer = {**trained["optimizer"], "state": kept}
        return tensors, {**state, "trainer": {**trained, "model": others, "optimizer": optimizer}, _PACKED: packed}

    def _packed_by(self) -> list[int] | None:
        if not any(group.get(STORAGE) for group in self._trainer.update.optimizer.param_groups):
            return None
        return [self._count, self._pieces]

    @property
    def _pieces(self) -> int:
        """The largest number of processes that hold a piece of the same weight."""
        recipe = self._trainer.recipe
        return group_size(recipe, self._count) * (self._count // sharers(recipe, self._count))

    @property
    def _group(self) -> Any:
        return None if self._ranks is None else self._ranks.hosts

    def _on_host(self, tensor: Tensor, layout: Tensor | None = None) -> Tensor:
        layout = tensor if layout is None else layout
        if not isinstance(layout, DTensor):
            return tensor.detach().cpu()
        if self._mesh is None and layout.device_mesh.device_type != CPU:
            self._mesh = DeviceMesh(CPU, layout.device_mesh.mesh)
        return spread_as(local(tensor).cpu(), layout, self._mesh)

    # -- reading

    def load(self, path: Path) -> dict[str, Any]:
        """Returns what this process goes on with, from a checkpoint of any number of processes; raises if unusable."""
        state, damaged = None, None
        try:
            state = self._checked_folder(path) if path.is_dir() else load_checkpoint(path)
        except DamagedCheckpointError as error:
            damaged = error
        if self.any(damaged is not None):
            raise damaged or DamagedCheckpointError("another process has found a part of it damaged")
        assert state is not None
        if path.is_dir():
            return self._load_folder(path, state)
        if self._ranks is not None:
            self._check_packed(state, [1, 1])
            model, weights = layouts(self._trainer)
            trained = state["trainer"]
            values, optimizer = trained["model"], trained["optimizer"]
            check_shapes(shapes(model), shapes(values))
            trained["model"] = {
                name: share_of_whole(value, model[name]) if isinstance(value, Tensor) else value
                for name, value in values.items()
            }
            for number, found in optimizer["state"].items():
                for key, one in found.items():
                    if isinstance(one, Tensor) and one.dim() and one.shape == weights[number].shape:
                        found[key] = share_of_whole(one, weights[number])
        return state

    def _checked_folder(self, folder: Path) -> dict[str, Any]:
        """Returns the rest that the first process saved, once this process's part of the files has the right checksums."""
        rest = load_checkpoint(_there(_rest_of(folder, 0)))
        # Each process looks at the files of one that has written, or, if fewer read now, of several.
        for number in range(self._number, int(rest["processes"]), self._count):
            written = load_checkpoint(_there(_rest_of(folder, number)))["digests"]
            for name, digest in written.items():
                if _digest(_there(folder / name)) != digest:
                    raise DamagedCheckpointError(f"the checksum of {name} does not match its content")
        return rest

    def _load_folder(self, folder: Path, rest: dict[str, Any]) -> dict[str, Any]:
        processes, trained = int(rest["processes"]), rest["trainer"]
        if processes == self._count:
            own = load_checkpoint(_rest_of(folder, self._number))["trainer"]
            trained["rounding"], trained["optimizer"]["state"] = own["rounding"], own["optimizer"]["state"]
        else:
            self._check_packed(rest, rest[_PACKED])
        model, weights = layouts(self._trainer)
        written, tensors = written_shares(folder), dict[str, Tensor]()
        saved = {name[len(_MODEL) :]: size for name, (size, _) in written.items() if name.startswith(_MODEL)}
        check_shapes(shapes(model), {**saved, **shapes(trained["model"])})
        for name, (size, dtype) in written.items():
            kind, _, key = name.partition(".")
            layout = model.get(key) if kind == "model" else weights[int(key.partition(".")[0])]
            if not isinstance(layout, Tensor) or layout.shape != size:
                raise OtherModelError(f"{folder} holds another model: {name} differs.")
            share = torch.empty(local(layout).shape, dtype=dtype)
            tensors[name] = self._on_host(share, layout)
        read_shares(folder, tensors, self._group, alone=self._ranks is None)
        for name, tensor in tensors.items():
            kind, _, key = name.partition(".")
            if kind == "model":
                trained["model"][key] = local(tensor)
            else:
                number, _, key = key.partition(".")
                trained["optimizer"]["state"].setdefault(int(number), {})[key] = local(tensor)
        return rest

    def _check_packed(self, state: Mapping[str, Any], by: list[int] | None) -> None:
        groups = state["trainer"]["optimizer"]["param_groups"]
        storage = next((group[STORAGE] for group in groups if group.get(STORAGE)), None)
        own = self._pieces
        if storage is not None and by is not None and by[1] != own:
            raise InputError(
                f"the saved optimizer holds its state as {storage}, packed in {by[1]} shares, and this run has {own}. Go on "
                f"with {by[0]} processes as before, or start the run anew."
            )


def _lies_as(value: Any, layout: Tensor) -> bool:
    """Whether a value of the optimizer's state has one element for each element of a parameter."""
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape == local(layout).shape


def _rest_of(folder: Path, number: int) -> Path:
    return folder / f"rank-{number:05d}"


def _there(path: Path) -> Path:
    if not path.is_file():
        raise DamagedCheckpointError(f"{path.name} is missing")
    return path


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
        os.fsync(file.fileno())
    return digest.hexdigest()
