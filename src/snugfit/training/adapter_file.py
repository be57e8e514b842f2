"""Adapters on disk, in the format of peft: `adapter_config.json` and `adapter_model.safetensors`; and merging.

The files load with `PeftModel.from_pretrained` onto the same transformers model, and with `load_adapter` onto any model.
They also hold what was trained beside the adapters: the head of a classifier (peft's `modules_to_save`).
"""

from __future__ import annotations

import copy
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from snugfit.atomic_file import replaced_file
from snugfit.errors import InputError, message_of
from snugfit.techniques.adapter.layers import NAME, adapted_layers, adapter_record, add_adapters, merge, peft_library
from snugfit.techniques.adapter.peft_names import name_for_peft, name_for_us
from snugfit.training.switch import take_over
from snugfit.workloads.weights_file import save_model

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TASK_TYPES = {
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "ForConditionalGeneration": "CAUSAL_LM",
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}
"""Endings of names of classes in transformers -> peft's word for the task."""
_PREFIX = "base_model.model."
"""In front of each name, since peft saves its wrapper around the model."""


def save_adapter(model: nn.Module, directory: str | Path) -> None:
    """Writes the adapters of a model, and the head that was trained with them.

    Args:
        model: A model with adapters, quantised or not.
        directory: Where the two files go; made if missing, files of the same names are replaced.

    Raises:
        InputError: The model has no adapters.
        OSError: The files cannot be written.
    """
    if not adapted_layers(model):
        raise InputError("the model has no adapters to save; train it with adapter='lora', rslora or dora first.")
    write_adapter(model, model.state_dict(), Path(directory))


def write_adapter(model: nn.Module, values: Mapping[str, Tensor], directory: Path) -> None:
    """Writes adapters and the head trained with them, from `values` (state-dict name -> whole tensor)."""
    directory.mkdir(parents=True, exist_ok=True)
    record = adapter_record(model)
    heads = record.classifier if record is not None else ()
    from peft.utils import get_peft_model_state_dict

    state: dict[str, Tensor] = get_peft_model_state_dict(
        model, state_dict=dict(values), adapter_name=NAME, save_embedding_layers=False
    )
    parts = tuple(f"{name}." for name in heads)
    state.update({name: value for name, value in values.items() if name.startswith(parts)})
    save_model(directory / WEIGHTS, {_PREFIX + name: value for name, value in state.items()})
    config = copy.copy(vars(model)["peft_config"][NAME])
    config.inference_mode = True
    config.modules_to_save = list(heads) or None
    config.base_model_name_or_path = getattr(model, "name_or_path", None) or None
    config.task_type = _task_type(model)
    name_for_peft(config, model)
    with tempfile.TemporaryDirectory() as folder, replaced_file(directory / CONFIG) as temporary:
        config.save_pretrained(folder)
        temporary.write_bytes((Path(folder) / CONFIG).read_bytes())


def _task_type(model: nn.Module) -> str | None:
    """Returns peft's word for the task of a transformers model, which its tools go by; None for other models."""
    kinds = type(model).__mro__ if hasattr(model, "config") else ()
    named = (word for kind in kinds for ending, word in _TASK_TYPES.items() if kind.__name__.endswith(ending))
    found = next(named, None)
    if found == "CAUSAL_LM" and getattr(model.config, "is_encoder_decoder", False):
        return "SEQ_2_SEQ_LM"
    return found


def load_adapter(model: nn.Module, directory: str | Path) -> None:
    """Puts adapters from files onto a plain model, ready to be used, trained on or merged.

    Args:
        model: The model that they were trained on, without adapters; changed in place.
        directory: Where `save_adapter`, `snugfit train` or peft has written them.

    Raises:
        InputError: The files are missing, or were made for another model.
    """
    directory = Path(directory)
    config = _read_config(directory)
    if adapted_layers(model):
        raise InputError("the model carries adapters already; merge them first with snugfit.merge_adapter(model).")
    from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict

    stored = _read_weights(directory / WEIGHTS)
    absent = any(weight.is_meta for weight in model.parameters())
    heads = tuple(config.modules_to_save or ())
    adapters = {name: value for name, value in stored.items() if "lora_" in name}
    rest = {name: value for name, value in stored.items() if name not in adapters}
    name_for_us(config, model)
    _check_fit(model, adapters, rest, directory)
    config.modules_to_save, config.inference_mode = None, False
    classifier = tuple(name for name, _ in model.named_modules() if name.endswith(heads))
    settings = {
        "adapter": "dora" if config.use_dora else "rslora" if config.use_rslora else "lora",
        "adapter_rank": config.r,
        "adapter_alpha": float(config.lora_alpha),
        "adapter_dropout": config.lora_dropout,
    }
    add_adapters(model, config, classifier=classifier, settings=settings, seed=0)
    if absent:  # peft would leave the adapters where the weights beside them are; these are still in their file
        own = model.state_dict(keep_vars=True)
        names = {id(value): name for name, value in own.items()}
        files = get_peft_model_state_dict(model, state_dict=own, adapter_name=NAME, save_embedding_layers=False)
        rest |= {names[id(value)]: adapters[name] for name, value in files.items()}
    else:
        set_peft_model_state_dict(model, adapters, adapter_name=NAME)
    model.load_state_dict(rest, strict=False, assign=absent)


def head_rows(directory: Path) -> int | None:
    """Returns the number of classes of a head that was trained with an adapter; None without one."""
    parts = tuple(f"{name}." for name in _read_config(directory).modules_to_save or ())
    stored = _read_weights(directory / WEIGHTS)
    rows = [len(value) for name, value in stored.items() if name.startswith(parts) and value.dim() > 1]
    return rows[-1] if parts and rows else None


def merge_adapter(model: nn.Module) -> None:
    """Adds the adapters to the weights they stand beside and takes them out: what is left is a plain model.

    A trainer of the model refuses to go on. Merged and unmerged outputs are equal up to rounding.

    Args:
        model: A model with adapters; changed in place.

    Raises:
        InputError: It has none, or its weights are quantised.
    """
    take_over(model)
    merge(model)


def _read_config(directory: Path) -> Any:
    peft = peft_library()
    for name in (CONFIG, WEIGHTS):
        if not (directory / name).is_file():
            raise InputError(
                f"{str(directory)!r} holds no adapter: {name} is missing. Give the directory of a saved adapter."
            )
    try:
        config = peft.PeftConfig.from_pretrained(str(directory))
    except (ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"{str(directory / CONFIG)!r} is not understood: {message_of(error)}.") from error
    if config.peft_type != peft.PeftType.LORA:
        raise InputError(
            f"{str(directory / CONFIG)!r} describes an adapter of kind {config.peft_type.value}; lora, rslora and dora are "
            "known."
        )
    return config


def _read_weights(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"adapter file {str(path)!r} cannot be read: {error}. It is damaged or cut short.") from error
    return {name.removeprefix(_PREFIX): value for name, value in stored.items()}


def _check_fit(model: nn.Module, adapters: dict[str, Tensor], rest: dict[str, Tensor], directory: Path) -> None:
    """Checks, before the model is touched, that it has every layer that an adapter belongs to, in the same size."""
    problems = []
    modules = dict(model.named_modules())
    for name, value in adapters.items():
        layer_name, _, part = name.partition(".lora_")
        layer_name = re.sub(r"(\.base_layer)+$", "", layer_name)  # of experts with several adapters
        layer = modules.get(layer_name)
        sizes = {"A": getattr(layer, "in_features", None), "B": getattr(layer, "out_features", None)}
        wanted = sizes.get(part[:1])
        if layer is None:
            problems.append(f"it has no layer {layer_name!r}")
        elif wanted is not None and value.shape[1 if part[0] == "A" else 0] != wanted:
            problems.append(f"layer {layer_name!r} has another size")
    own = model.state_dict()
    problems += [f"it has no {name!r} of shape {list(value.shape)}" for name, value in rest.items()
                 if name not in own or own[name].shape != value.shape]  # fmt: skip
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise InputError(
            f"the adapter in {str(directory)!r} does not fit this model: {'; '.join(problems[:3])}{more}. Give the "
            "model that it was trained on."
        )
