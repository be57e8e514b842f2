"""The adapter of a finished run and the weights that it was trained beside, as one plain model.

A run whose weights were whole has merged them already, and what it has saved is copied. One whose weights were packed (nf4,
int8) has saved its adapter alone, because a sum rounded to so few bits would lose most of what was learned: there the full
weights are read again from where they came from, a layer at a time, and each goes into the file before the next is read.
"""

from __future__ import annotations

import dataclasses
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from snugfit.atomic_file import filled_folder
from snugfit.errors import InputError, SnugfitWarning, listed
from snugfit.recipe import Recipe
from snugfit.runs.model_parts import hub_name, starting_weights, stored_start
from snugfit.runs.request import Request, is_named, resume_command
from snugfit.runs.run_files import START, RunFiles, holds_run
from snugfit.techniques.adapter.layers import adapter_record
from snugfit.techniques.adapter.merged import adapted_everywhere, merged_weights, tensor_names
from snugfit.techniques.init.late import values_of
from snugfit.training.adapter_file import CONFIG, WEIGHTS, head_rows, load_adapter
from snugfit.training.run_results import ADAPTER, MODEL, written_beside
from snugfit.workloads.hf import load_config
from snugfit.workloads.hf_files import fresh_parts
from snugfit.workloads.models import build_model, parse_model_args
from snugfit.workloads.stored_weights import StoredShards, StoredWeights, fingerprint
from snugfit.workloads.weights_file import Layout, layout_of, save_tensors


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    """What was written."""

    run_dir: str
    """The run."""
    output: str
    """The folder."""
    adapter: str
    """lora, rslora or dora."""
    weights: str
    """What the adapter was added to: the run's own model file, or where the full weights were read from."""
    merged_layers: int
    """Layers that had an adapter beside them."""
    file_bytes: int
    """Size of the model file."""
    files: tuple[str, ...]
    """What is in the folder."""

    def to_mapping(self) -> dict[str, Any]:
        """Returns what `snugfit merge --json` prints."""
        return {**dataclasses.asdict(self), "files": list(self.files)}

    def __str__(self) -> str:
        from snugfit.report.console import card
        from snugfit.units import format_bytes

        rows = [
            ("adapter", f"{self.adapter} beside {self.merged_layers} layers"),
            ("added to", self.weights),
            ("model", f"{format_bytes(self.file_bytes)}"),
            ("files", f"{self.output}: {', '.join(self.files)}"),
        ]
        return card(f"{self.run_dir}, merged", rows)


def merge_run(run_dir: Path, output: Path) -> Merged:
    """Writes the model of a finished run with its adapter merged; `InputError` where that cannot be done.

    `output`: a folder that is not there yet, or is empty. Of a `hf:` model it loads with `from_pretrained`; of others
    its `model.safetensors` has the plain model's keys.
    """
    request, recipe = _read(run_dir)
    _check_output(output)
    try:
        with filled_folder(output) as folder:
            beside = written_beside(run_dir)
            for name in beside:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(run_dir / name, folder / name)
            if (run_dir / MODEL).is_file():
                weights, layers = str(run_dir / MODEL), _layers_of(run_dir / ADAPTER)
                shutil.copyfile(run_dir / MODEL, folder / MODEL)
            else:
                weights, layers = _merge(request, run_dir, folder)
    except OSError as error:
        raise InputError(
            f"{str(output)!r} cannot be written: {error.strerror or error}. Give another -o DIR."
        ) from error
    return Merged(
        run_dir=str(run_dir),
        output=str(output),
        adapter=recipe.adapter,
        weights=weights,
        merged_layers=layers,
        file_bytes=(output / MODEL).stat().st_size,
        files=(MODEL, *beside),
    )


def _read(run_dir: Path) -> tuple[Request, Recipe]:
    """The request of the run, if it has an adapter."""
    if not run_dir.is_dir():
        raise InputError(f"run directory {str(run_dir)!r} does not exist. Give that of a finished run.")
    if not holds_run(run_dir):
        raise InputError(
            f"{str(run_dir)!r} is a folder without a run in it. Give the run directory of `snugfit train`."
        )
    kept = RunFiles(run_dir)
    request, recipe = kept.read_request(), kept.read_recipe()
    if recipe.adapter == "none":
        raise InputError(
            f"the run in {str(run_dir)!r} trained no adapter (adapter=none), so there is nothing to merge: its {MODEL} has "
            "the whole weights."
        )
    if not (run_dir / ADAPTER / CONFIG).is_file():
        raise InputError(
            f"the run in {str(run_dir)!r} has saved no adapter: it is not finished. Go on with: "
            f"{resume_command(run_dir, request)}"
        )
    return request, recipe


def _check_output(output: Path) -> None:
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(
            f"-o {str(output)!r} is there already, and is not overwritten. Give a folder that is not there."
        )


def _layers_of(adapter: Path) -> int:
    """How many layers have an adapter."""
    return sum(name.endswith("lora_A.weight") for name in StoredWeights(adapter / WEIGHTS).shapes)


def _merge(request: Request, run_dir: Path, folder: Path) -> tuple[str, int]:
    """Merges into the starting weights; returns where they were, and how many layers were merged."""
    model, where = _starting_model(request, run_dir)
    load_adapter(model, run_dir / ADAPTER)
    _check_whole(model, where)
    layers = adapted_everywhere(model)
    state = model.state_dict(keep_vars=True)
    inside = {name: tensor_names(name, layer) for name, layer in layers.items()}
    ours = {name for _, names in inside.values() for name in names}
    plain = {name: one for name, one in layout_of(state).items() if name not in ours}
    layout = _as_stored(plain, stored_start(request))

    def tensors() -> Iterator[tuple[str, Tensor]]:
        done = set(ours)
        for name, layer in layers.items():
            values = {key: _wide(values_of(state[key])) for names in inside[name] for key in names}
            yield from merged_weights(name, layer, values).items()
            done.update(inside[name][0])
        yield from ((name, values_of(value)) for name, value in state.items() if name not in done)

    save_tensors(folder / MODEL, layout, ((name, value.to(layout[name][0])) for name, value in tensors()))
    if hub_name(request) is not None:
        config = load_config(str(run_dir / "config.json"))
        config.dtype = next(dtype for dtype, _ in layout.values() if dtype.is_floating_point)
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
    return where, len(layers)


def _starting_model(request: Request, run_dir: Path) -> tuple[nn.Module, str]:
    """The model with its starting weights, most of them still in their file; and where that is."""
    if not is_named(request.model):
        raise InputError(
            f"the model of this run came from Python ({request.model}), and its weights were packed. Merge it there: "
            f"snugfit.load_adapter(model, {str(run_dir / ADAPTER)!r}), snugfit.merge_adapter(model)."
        )
    classes, name = head_rows(run_dir / ADAPTER), hub_name(request)
    if name is not None:
        load_config(name)  # says what is wrong where it is not there any more
    weights = starting_weights(request)
    if weights is None:
        raise InputError(
            f"the run in {str(run_dir)!r} packed random values, which are in no file, so that there are no full weights to "
            "merge into. Its adapter is of use beside the packed weights alone."
        )
    _check_unchanged(request, run_dir)
    if name is not None and classes is not None:
        classes = load_config(str(run_dir / "config.json")).num_labels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnugfitWarning)  # a head that is fresh comes with the adapter
        model = build_model(
            request.model,
            model_args=parse_model_args(request.model_args),
            num_classes=classes,
            task=request.task,
            weights=weights,
            late=True,
        )
    return model, f"{request.model} ({weights})" if weights != "DEFAULT" or name is None else request.model


def _check_unchanged(request: Request, run_dir: Path) -> None:
    """Raises if the starting weights have been replaced by others since."""
    stored, noted = stored_start(request), run_dir / START
    if stored is not None and noted.is_file() and noted.read_text(encoding="utf-8").strip() != fingerprint(stored):
        raise InputError(
            f"the weights in {str(stored.path)!r} are not those that the run in {str(run_dir)!r} started from: they were "
            "replaced since, and its adapter means nothing beside them. Put those of then back."
        )


def _check_whole(model: nn.Module, where: str) -> None:
    """Raises for what training has changed or drawn and no file has."""
    record = adapter_record(model)
    heads = tuple(f"{name}." for name in (() if record is None else record.classifier))
    drawn = [name for name in fresh_parts(model) if not name.startswith(heads)]
    if drawn:
        raise InputError(
            f"{where} has no values for {listed(drawn)}: they were drawn when the run began, and packed, so that their full "
            "values are in no file. Merging needs a run that started from all of its model's weights."
        )
    norms = [name for name, module in model.named_modules() if getattr(module, "track_running_stats", False)]
    if norms:
        raise InputError(
            f"training has changed the running statistics of {listed(norms)}, which an adapter does not hold, and the full "
            "weights were not saved as they were packed. Train without quantize."
        )


def _as_stored(layout: Layout, stored: StoredWeights | StoredShards | None) -> Layout:
    """The layout in the dtypes of the starting file; what is not in it gets the dtype of most of it."""
    if stored is None:
        return layout
    floats = [dtype for dtype in stored.dtypes.values() if dtype.is_floating_point]
    most = max(floats, key=floats.count)
    return {
        name: (stored.dtypes.get(name, most) if dtype.is_floating_point else dtype, shape)
        for name, (dtype, shape) in layout.items()
    }


def _wide(value: Tensor) -> Tensor:
    """At least 32 bits, so that the sum is rounded once."""
    return value.float() if value.is_floating_point() and value.dtype.itemsize < 4 else value
