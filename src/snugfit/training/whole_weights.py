"""The weights of a trained model, whole and under the plain model's keys, on the host of the first process.

Processes that share weights out or cut them collect one tensor after the other, or the few of one layer; the first takes
each to its host, or straight into a file, before the next is asked for. So no device ever holds more than a layer beside its
own share, and a model that is saved is nowhere whole but in its file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from snugfit.atomic_file import filled_folder
from snugfit.errors import InputError, SnugfitError
from snugfit.techniques.adapter.layers import adapter_record
from snugfit.techniques.adapter.merged import adapted_everywhere, merged_weights, tensor_names
from snugfit.techniques.packed_weight import PackedWeight
from snugfit.training.adapter_file import write_adapter
from snugfit.training.run_results import ADAPTER, MODEL
from snugfit.workloads.hf_files import save_beside
from snugfit.workloads.stored_weights import StoredWeights
from snugfit.workloads.weights_file import layout_of, save_tensors

if TYPE_CHECKING:
    from snugfit.training.trainer_state import TrainerState

SUFFIX = ".safetensors"
Arriving = Iterator[dict[str, Any]]
"""Whole tensors by name, one after the other, or all of a layer together."""


def full_state_dict(trainer: TrainerState) -> dict[str, Any]:
    """Returns a trainer's whole model on the host, between two steps; every process must call this.

    State-dict name -> tensor in memory of its own, tied ones in the same; of several processes, empty in all but the
    first.
    """
    trainer.finish()
    found: dict[str, Any] = {}

    def take(arriving: Arriving) -> None:
        for unit in arriving:
            value = next(iter(unit.values()))
            found.update(dict.fromkeys(unit, value.to("cpu", copy=True) if isinstance(value, Tensor) else value))

    state = trainer.model.state_dict(keep_vars=True)
    _collect(trainer, _tied(state, state), take)
    return {name: found[name] for name in state if name in found}


def save(trainer: TrainerState, path: str | Path) -> None:
    """Writes what a trainer has learned, see `Trainer.save`; every process must call this."""
    path, model = Path(path), trainer.model

    def write(weights: Weights) -> None:
        try:
            if path.suffix == SUFFIX:
                path.parent.mkdir(parents=True, exist_ok=True)
                weights.write_model(path)
                return
            with filled_folder(path) as folder:
                weights.write(folder)
                if _is_of_transformers(model):
                    save_beside(model, folder, use_cache=None, tokenizer=None)
        except OSError as error:
            raise InputError(
                f"{str(path)!r} cannot be written: {error.strerror or error}. Give another path."
            ) from error

    if path.suffix == SUFFIX and is_packed(model):
        raise InputError(
            f"{str(path)!r} is a file for whole weights, and those of this model are packed (quantize). Give a folder: what "
            "was learned goes there as an adapter."
        )
    trainer.finish()
    write_together(trainer, write)


def save_state(trainer: TrainerState, path: Path) -> None:
    """Writes all that a model holds to a safetensors file, adapters and packed weights as they are; all must call this."""
    trainer.finish()
    state = trainer.model.state_dict(keep_vars=True)
    layout = layout_of(state)
    pairs = _tied(state, state)
    _collect(
        trainer, pairs, lambda arriving: save_tensors(path, layout, (one for unit in arriving for one in unit.items()))
    )


@torch.no_grad()
def load_state(trainer: TrainerState, path: Path) -> None:
    """Loads a file of `save_state` into a trainer of the same model: each process reads its own share."""
    stored = StoredWeights(path)
    trainer.finish()
    state = trainer.model.state_dict()
    if {name: tuple(value.shape) for name, value in state.items()} != stored.shapes:
        raise InputError(f"{str(path)!r} holds another model. Put back the file that the run has written.")
    for name, value in state.items():
        whole = stored.read(name)
        if trainer.ranks is None:
            value.copy_(whole)
        else:
            from snugfit.training.shares import put_share  # loads torch's sharding

            put_share(value, whole)


def is_packed(model: nn.Module) -> bool:
    """Returns whether weights of a model are quantised, so that only its adapter can be saved."""
    return any(isinstance(module, PackedWeight) for module in model.modules())


class Weights:
    """The tensors that the first process has to write; they arrive whole, one by one."""

    def __init__(self, model: nn.Module, adapter: Mapping[str, Tensor], layers: Mapping[str, Any], arriving: Arriving):
        self._model, self._adapter, self._layers, self._arriving = model, adapter, layers, arriving

    def write(self, folder: Path) -> None:
        """Writes `model.safetensors` with adapters merged, and `adapter/` where adapters were trained.

        Quantised weights are neither merged nor written: the full ones are where they came from. Files of these names
        are replaced.
        """
        if self._layers:
            write_adapter(self._model, self._adapter, folder / ADAPTER)
        if not is_packed(self._model):
            self.write_model(folder / MODEL)

    def write_model(self, path: Path) -> None:
        """Writes the plain model's file; `InputError` where an adapter is not finite, or something is no tensor."""
        layout = layout_of(self._model.state_dict())
        own = {name for layer in self._layers.items() for name in tensor_names(*layer)[1]}
        save_tensors(path, {name: one for name, one in layout.items() if name not in own}, self._merged())

    def _merged(self) -> Iterator[tuple[str, Tensor]]:
        owners = {name: layer for layer, module in self._layers.items() for name in tensor_names(layer, module)[0]}
        for unit in self._arriving:
            layer = owners.get(next(iter(unit), ""))
            if layer is not None:
                here = {name: value.detach().cpu() for name, value in unit.items()}
                unit = merged_weights(layer, self._layers[layer], {**here, **self._adapter})
            yield from unit.items()


def write_together(trainer: TrainerState, write: Callable[[Weights], None]) -> None:
    """Collects a model's weights in all processes, writes them in the first; what `write` raises is raised in all."""
    model = trainer.model
    layers = adapted_everywhere(model)
    state = model.state_dict(keep_vars=True)
    record = adapter_record(model)
    heads = tuple(f"{name}." for name in (() if record is None else record.classifier))
    plain, ours = {name: tensor_names(name, layer)[0] for name, layer in layers.items()}, set[str]()
    for name, layer in layers.items():
        ours.update(tensor_names(name, layer)[1])
    adapter: dict[str, Tensor] = {}

    def keep(arriving: Arriving) -> None:
        for unit in arriving:
            adapter.update((name, value.detach().cpu()) for name, value in unit.items())

    if layers:
        _collect(trainer, ([name] for name in state if name in ours or name.startswith(heads)), keep)
    inside = {name for names in plain.values() for name in names}
    rest = _tied(state, (name for name in state if name not in ours and name not in inside))
    units = () if is_packed(model) else (*plain.values(), *rest)
    _collect(trainer, units, lambda arriving: write(Weights(model, adapter, layers, arriving)))


def _tied(state: Mapping[str, Any], names: Iterable[str]) -> list[list[str]]:
    """Groups of names that share a tensor."""
    groups: dict[int, list[str]] = {}
    for name in names:
        groups.setdefault(id(state[name]), []).append(name)
    return list(groups.values())


@torch.no_grad()
def _collect(trainer: TrainerState, units: Iterable[Sequence[str]], take: Callable[[Arriving], None]) -> None:
    """Collects tensors in all processes and gives them to the first; after an error the others still go on to the end."""
    state, ranks = trainer.model.state_dict(keep_vars=True), trainer.ranks
    if ranks is None:
        take({name: state[name] for name in names} for names in units)
        return
    from snugfit.training.shares import whole_of  # loads torch's sharding

    def whole(names: Sequence[str]) -> dict[str, Any]:
        once = {id(state[name]): state[name] for name in names}
        made = {key: whole_of(value) for key, value in once.items()}
        return {name: made[id(state[name])] for name in names}

    arriving, failed = (whole(names) for names in units), None
    if ranks.number == 0:
        try:
            take(arriving)
        except (OSError, SnugfitError) as error:
            failed = error
    # The other processes, and a first one that has failed, go through all collectives: nobody waits in vain.
    for _ in arriving:
        pass
    failed = ranks.tell(failed)[0]
    if failed is not None:
        raise failed


def _is_of_transformers(model: nn.Module) -> bool:
    library = sys.modules.get("transformers")
    return library is not None and isinstance(model, library.PreTrainedModel)
