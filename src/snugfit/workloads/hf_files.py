"""Files of transformers models: where they are, pretrained weights in, and what makes a run directory loadable out.

Weights are read by transformers' own `from_pretrained`, which knows each architecture's old names, base models without a
head, shards with an index and stacked experts. It builds without memory and reads each tensor into place in the final
dtype, so neither host nor device ever holds a second copy. Only safetensors files are read.

`hf:DIRECTORY` with weights in it loads them, as users of transformers expect; `hf:DIRECTORY/config.json` names the config
alone, and the model starts from random values.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import logging as log_levels
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from snugfit.errors import InputError, listed, warn
from snugfit.workloads.model_files import describe
from snugfit.workloads.stored_weights import StoredShards

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
"""A directory with weights has one of these."""

GENERATION = "generation_config.json"
"""What transformers' `generate` goes by, beside the config."""

_FRESH = "snugfit_fresh"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_FETCHED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")


def directory_of(name: str) -> Path | None:
    """Returns where the files of a model are (`name` is what follows `hf:`).

    The directory itself, that of the config file, or that of the local cache; None where there is none.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        return path.parent
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def fetch(name: str) -> None:
    """Downloads a model by its hub name, once; does nothing for local files."""
    if Path(name).expanduser().exists() or name.endswith(".json") or name.startswith((".", "/", "~")):
        return
    from huggingface_hub import snapshot_download

    try:
        with quiet():
            snapshot_download(name, allow_patterns=list(_FETCHED))
    except Exception as error:
        raise InputError(
            f"model 'hf:{name}' cannot be fetched: {describe(error, None)}. Check the name and the network, or give a local "
            "directory."
        ) from error


def holds_weights(name: str) -> bool:
    """Returns whether a name has pretrained weights to start from; `InputError` if pickled, or only a config."""
    path = Path(name).expanduser()
    if path.is_file():
        return False
    directory = directory_of(name)
    if directory is None:
        return False
    if any((directory / file).is_file() for file in WEIGHTS):
        return True
    pickled = next((file for file in PICKLED if (directory / file).is_file()), None)
    if pickled is not None:
        raise InputError(
            f"model 'hf:{name}' has its weights in {pickled}. Pickled checkpoints can run code when they are opened; save "
            "the model with save_pretrained, which writes safetensors."
        )
    if not path.is_dir():
        raise InputError(
            f"model 'hf:{name}' is in the local cache without its weights. Add --download, or give a local directory."
        )
    return False


def stored_weights(name: str) -> StoredShards | None:
    """Returns the safetensors files of a directory; None where it has none."""
    if Path(name).expanduser().is_file():
        return None
    directory = directory_of(name)
    if directory is None:
        return None
    one, index = (directory / file for file in WEIGHTS)
    if one.is_file():
        return StoredShards([one])
    if not index.is_file():
        return None
    try:
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{str(index)!r} cannot be read: {describe(error, None)}. Save the model again.") from error
    return StoredShards([directory / file for file in files])


def load_pretrained(
    name: str, chosen: Any, config: Any, *, device: torch.device, dtype: torch.dtype
) -> torch.nn.Module:
    """Builds a model with its directory's weights by class `chosen`; a warning names parts that stay fresh."""
    directory = directory_of(name)
    if directory is None or not any((directory / file).is_file() for file in WEIGHTS):
        raise InputError(
            f"model 'hf:{name}' has no weights ({' or '.join(WEIGHTS)}). Leave --weights out, or name a file."
        )
    place: dict[str, Any] = {}
    if device.type != "cpu":
        if importlib.util.find_spec("accelerate") is None:
            raise InputError(
                f"reading weights straight onto {device} needs the library accelerate, which is not installed. Run: pip "
                "install snugfit[text], or use init='host'."
            )
        place = {"device_map": {"": device}}
    try:
        with quiet():
            model, info = chosen.from_pretrained(
                str(directory),
                config=config,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **place,
            )
    except Exception as error:
        raise InputError(
            f"the weights of 'hf:{name}' cannot be read: {describe(error, None)}. They are damaged, incomplete, or another "
            "model's than config.json says."
        ) from error
    setattr(model, _FRESH, _check_loaded(name, model, info))
    assert isinstance(model, torch.nn.Module)
    return model


def fresh_parts(model: torch.nn.Module) -> tuple[str, ...]:
    """Returns the names of tensors that were drawn because the directory had none that fit."""
    found: tuple[str, ...] = getattr(model, _FRESH, ())
    return found


def _check_loaded(name: str, model: Any, info: Mapping[str, Any]) -> tuple[str, ...]:
    """Warns of a fresh head; raises where most of a model is fresh, because then the weights are not its own."""
    other = {str(entry[0]) for entry in info["mismatched_keys"]}
    fresh = sorted(other | set(info["missing_keys"]))
    sizes = {key: value.numel() for key, value in model.named_parameters()}
    body = {key: size for key, size in sizes.items() if key.startswith(f"{model.base_model_prefix}.")} or sizes
    lost = sum(size for key, size in body.items() if key in fresh)
    if lost > sum(body.values()) / 2 or info["error_msgs"]:
        reason = "; ".join(map(str, info["error_msgs"])) or f"no values for {listed(fresh)}"
        raise InputError(
            f"the weights of 'hf:{name}' do not fit its config: {reason}. Give the directory of one model, as "
            "save_pretrained writes it."
        )
    if fresh:
        shape = " (of another shape there)" if other else ""
        warn(f"{listed(fresh)}{shape}: fresh values; the weights of hf:{name} have none that fit. Train them.")
    return tuple(fresh)


def save_beside(model: torch.nn.Module, folder: Path, *, use_cache: bool | None, tokenizer: Any) -> None:
    """Writes what transformers' `from_pretrained` needs beside the weights: config and tokenizer.

    `use_cache`: the config's own `use_cache`, which training switches off; None: it has none.
    """
    config: Any = copy.deepcopy(model.config)
    config.architectures = [_plain_class(model).__name__]
    if use_cache is not None:
        config.use_cache = use_cache
    config.dtype = next((value.dtype for value in model.parameters() if value.is_floating_point()), torch.float32)
    config.save_pretrained(folder)
    generation: Any = getattr(model, "generation_config", None)
    if generation is not None and generation != type(generation).from_model_config(model.config):
        generation.to_json_file(folder / GENERATION)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def _plain_class(model: torch.nn.Module) -> type:
    """The class of a model, also where torch's sharding has made a subclass of it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    made = () if fsdp is None else (fsdp.FSDPModule,)
    return next(one for one in type(model).__mro__ if not issubclass(one, made))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Context in which transformers and its hub library print nothing; we report what matters."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub = log_levels.getLogger("huggingface_hub")
    hub_level = hub.level
    logging.set_verbosity(log_levels.CRITICAL)
    hub.setLevel(log_levels.CRITICAL)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        hub.setLevel(hub_level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
