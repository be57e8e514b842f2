"""Models of transformers: `hf:DIRECTORY`, `hf:path/config.json`, or a name in the local cache.

Nothing is downloaded here: a config says the shapes, and an estimate needs no more; weights are `hf_files.py`'s. The task
chooses the class, as in transformers (`tasks.py`). All of them return their loss when the batch has labels.

The name of a kind alone (`hf:llama`) stands for the sizes that transformers gives it where nothing else is said.

A model is built in float32, whatever dtype its config names, because the recipe decides the precision. `use_cache` is
switched off, as transformers' own Trainer does: keys and values of earlier tokens are of no use in training.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from snugfit.errors import InputError, did_you_mean, message_of, nearest
from snugfit.library_imports import needed
from snugfit.techniques.init.late import await_draws
from snugfit.workloads import hf_files
from snugfit.workloads.hf_conversion import sources_of
from snugfit.workloads.model_files import describe
from snugfit.workloads.tasks import CAUSAL_LM, TASKS, TEXT_CLASSIFICATION, task_named
from snugfit.workloads.weights import await_converted, await_weights

TOKEN_IDS = ("pad_token_id", "eos_token_id", "bos_token_id")
"""Fields that belong to the tokenizer; a config takes them whether it has them or not."""


def task_of(name: str, task: str | None, among: Collection[str] = TASKS) -> str:
    """Returns what a config's model is for: as asked for, else by its architecture, else by its kind.

    `among`: tasks that come into question where nothing was asked for.
    """
    config = load_config(name)
    able = tasks_of(config)
    if task is not None and task not in able:
        raise InputError(
            f"model 'hf:{name}' has no class in transformers for {task}; give --task {' or '.join(able) or 'nothing'}."
        )
    found = [one for one in able if one in among] if task is None else [task]
    if not found:
        does = f"It can be trained for {', '.join(able)}."
        raise InputError(
            f"model 'hf:{name}' is of kind {config.model_type!r}, which has no class in transformers for "
            f"{' or '.join(among) if len(among) < 4 else 'any task that is known here'}. "
            f"{does if able else 'Train it from Python, with its own batch and loss.'}"
        )
    return found[0]


def tasks_of(config: Any) -> list[str]:
    """Returns the tasks of the classes that a config names, then those of its kind, the most natural first."""
    from transformers.models.auto import modeling_auto

    named = set(getattr(config, "architectures", None) or ())
    first: list[str] = []
    rest: list[str] = []
    for task in TASKS.values():
        classes = getattr(modeling_auto, f"MODEL_FOR_{task.table}_MAPPING_NAMES", {}).get(config.model_type, ())
        if classes:
            (first if named & set(classes if isinstance(classes, tuple) else [classes]) else rest).append(task.name)
    # Kinds that fill in words mostly have a class that goes from left to right too; which one is meant, the config says.
    last = "masked-lm" if getattr(config, "is_decoder", False) else CAUSAL_LM
    if "masked-lm" in first + rest and last in rest:
        rest.remove(last)
        rest.append(last)
    return first + rest


def is_kind(name: str) -> bool:
    """Returns whether a name is only a kind of model, such as llama: no files, nothing in the local cache."""
    if Path(name).expanduser().exists() or "/" in name or name.endswith(".json") or hf_files.directory_of(name):
        return False
    return name in _kinds()


def _kinds() -> Collection[str]:
    kinds: Collection[str] = _transformers().models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    return kinds


def maker(
    name: str,
    arguments: Mapping[str, Any],
    num_classes: int | None,
    task: str | None,
    read: Mapping[str, Any] | None = None,
) -> Callable[[], torch.nn.Module]:
    """Checks a config and returns a function that builds its model; `arguments` are fields to change in it.

    `num_classes`: classes of a head that tells some apart; `arguments` wins where it says another. A head for another
    number than that of the weights starts from fresh values.
    `read`: `device` and `dtype` that the weights of the directory are read to; None: random values, in float32.
    `task`: one of `TASKS`; None: what the config's architecture is for.
    """
    task, config = _task_and_config(name, arguments, num_classes, task)
    if read is None:
        return partial(_build, name, config, task)
    return partial(hf_files.load_pretrained, name, _class_for(task), config, **read)


def _task_and_config(
    name: str, arguments: Mapping[str, Any], num_classes: int | None, task: str | None
) -> tuple[str, Any]:
    task = task or task_of(name, None)
    known, config = task_named(task), load_config(name)
    wanted = dict(arguments)
    if known.classes:
        classes = wanted.pop("num_classes", num_classes)
        if classes is not None:
            wanted.setdefault("num_labels", classes)
    unknown = [key for key in wanted if not hasattr(config, key) and key not in TOKEN_IDS]
    if unknown:
        fields = sorted(key for key in config.to_dict() if not key.startswith("_"))
        raise InputError(
            f"model argument {unknown[0]!r} is no field of the config of hf:{name}; {did_you_mean(unknown[0], fields)}"
        )
    for key, value in wanted.items():
        try:
            setattr(config, key, value)
        except Exception as error:  # configs judge their fields
            raise InputError(
                f"model argument {key}={value!r} is not taken by the config of hf:{name}: {describe(error, None)}."
            ) from error
    config.use_cache = False
    if known.labels == "class":
        config.problem_type = "single_label_classification"  # as the task has it, whatever the labels look like
    if task == TEXT_CLASSIFICATION and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0  # decoders look for the last token that is no padding
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        # Checkpoints of T5 and its kin begin with padding; the class by itself says nothing, and cannot be trained.
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    return task, config


def _class_for(task: str) -> Any:
    return getattr(_transformers(), "AutoModelFor" + TASKS[task].auto_class)


def _build(name: str, config: Any, task: str) -> torch.nn.Module:
    try:
        model = _class_for(task).from_config(config, dtype=torch.float32)
    except Exception as error:
        raise InputError(
            f"model hf:{name} could not be built for {task}: {describe(error, None)}. Check the config and --task."
        ) from error
    assert isinstance(model, torch.nn.Module)
    if task == CAUSAL_LM and getattr(model, "loss_type", "") is None:
        model.loss_type = "ForCausalLM"  # type: ignore[assignment]  # what transformers takes anyway, after saying so at each start
    return model


def await_values(name: str, model: Any, *, drawn: bool | None = None, without_values: bool = False) -> bool:
    """Marks parameters on meta as awaited: their values are in the model's directory, or will be drawn.

    `drawn`: whether they are drawn; None: where the directory has none.
    `without_values`: whether memory of their size and dtype stands for them.
    """
    stored = None if drawn else hf_files.stored_weights(name)
    if stored is None:
        return drawn is not False and await_draws(model, without_values=without_values)
    if not without_values:
        model.name_or_path = model.config.name_or_path = str(stored.path)  # as transformers' own loading does
    if await_weights(model, stored, without_values=without_values):
        return True
    sources = sources_of(model, stored.shapes)
    return sources is not None and await_converted(model, stored, sources, without_values=without_values)


def load_config(name: str) -> Any:
    """Reads a config (directory, file, name in the local cache, kind) without the network; `InputError` if there's none."""
    if not name:
        raise InputError(
            "model 'hf:' names nothing. Write hf:DIRECTORY, hf:path/config.json or a kind such as hf:llama."
        )
    path = Path(name).expanduser()
    file = path / "config.json" if path.is_dir() else path
    if file.is_file():
        return _read_config(file)
    if path.is_dir() or name.endswith(".json") or name.startswith((".", "/", "~")):
        raise InputError(f"model 'hf:{name}': {str(file)!r} does not exist. Give a directory with a config.json.")
    directory = hf_files.directory_of(name)
    if directory is None or not (directory / "config.json").is_file():
        if name in _kinds():
            return _config_of_kind(name)
        raise InputError(
            f"model 'hf:{name}' is neither a directory with a config.json, nor such a file, nor in the local cache, nor a "
            f"kind of model; {nearest(name, list(_kinds()))}"
            "nothing is downloaded unless asked for: add --download to `snugfit train`, or give the path of its config.json."
        )
    return _read_config(directory / "config.json")


def _config_of_kind(kind: str) -> Any:
    try:
        return _transformers().AutoConfig.for_model(kind)
    except Exception as error:
        raise InputError(
            f"model 'hf:{kind}': transformers has no sizes of its own for this kind ({describe(error, None)}). Give the "
            "path of a config.json."
        ) from error


def _read_config(file: Path) -> Any:
    try:
        given = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"config {str(file)!r} cannot be read as JSON: {message_of(error)}. Give the config.json that "
            "belongs to the model."
        ) from error
    if not isinstance(given, dict) or not isinstance(given.get("model_type"), str):
        raise InputError(
            f"config {str(file)!r} says no model_type, so it is no config of transformers. Give one that says it, such as "
            '"model_type": "llama".'
        )
    transformers = _transformers()
    kind = given.pop("model_type")
    try:
        return transformers.AutoConfig.for_model(kind, **given)
    except ValueError as error:
        hint = nearest(kind, list(_kinds()))
        raise InputError(
            f"config {str(file)!r} has model_type {kind!r}, which the installed transformers does not know; {hint}"
            "a newer transformers may."
        ) from error
    except Exception as error:
        raise InputError(f"config {str(file)!r} is not understood: {describe(error, None).rstrip('.')}.") from error


def _transformers() -> ModuleType:
    transformers: ModuleType = needed("hf: models need", "transformers", install="snugfit[text]")
    needed("hf: models need", "transformers.modeling_utils", install="snugfit[text]")
    return transformers
