"""Models and data of text: opened, matched, and saved so that transformers loads them."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path
from typing import Any

import torch

from snugfit.errors import InputError
from snugfit.runs.model_parts import hub_name, starting_weights, told
from snugfit.runs.request import Request
from snugfit.workloads.data import Splits
from snugfit.workloads.hf import load_config
from snugfit.workloads.hf_files import GENERATION, directory_of, save_beside
from snugfit.workloads.model_shapes import output_classes, sequence_length, vocabulary_size
from snugfit.workloads.tasks import READ
from snugfit.workloads.text import TextOptions, open_text
from snugfit.workloads.text.tokenizer import check_vocabulary, end_id, load_tokenizer, pad_id

_SAME_OPTIONS = ("task", "packing", "text_column", "label_column", "prompt_column", "samples")


def open_matching_text(request: Request, model: torch.nn.Module, *, download: bool) -> Splits:
    """Opens text in the tokens that the model takes; `model` is one without memory, to look at."""
    assert request.task is not None
    name = hub_name(request)
    vocabulary = vocabulary_size(model)
    pretrained = starting_weights(request) == "DEFAULT"
    tokenizer = None
    if request.data != "random":
        directory = None if name is None else directory_of(name)
        tokenizer = load_tokenizer(directory, model=request.model, pretrained=pretrained)
        if vocabulary is not None:
            check_vocabulary(tokenizer, vocabulary, model=request.model)
    if request.packing and "position_ids" not in inspect.signature(model.forward).parameters:
        raise InputError(
            f"--packing needs a model that takes position_ids, by which it tells samples in a row apart; {request.model!r} "
            "does not. Leave --packing out."
        )
    config = getattr(model, "config", None)
    return open_text(
        request.data,
        TextOptions(
            **{name: getattr(request, name) for name in _SAME_OPTIONS},
            seq_len=sequence_length(model, request.seq_len),
            seed=request.settings.seed,
            download=download,
        ),
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        num_classes=output_classes(model),
        label_ids=getattr(config, "label2id", None) if pretrained else None,
    )


def built_by(request: Request, data: Splits) -> dict[str, Any]:
    """Returns how a named model is built; for `hf:` with config fields that follow from the data, unless given."""
    given = told(request, data.num_classes)
    arguments = given["model_args"] if hub_name(request) is None else _config_fields(request, data, given["model_args"])
    return {**given, "model_args": arguments, "freeze": request.settings.freeze}


def _config_fields(request: Request, data: Splits, given: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if data.tokenizer is not None:
        fields["pad_token_id"] = pad_id(data.tokenizer)
        if starting_weights(request) is None:
            fields["eos_token_id"] = end_id(data.tokenizer)
            fields["bos_token_id"] = data.tokenizer.bos_token_id
    count = given.get("num_labels", given.get("num_classes"))
    if request.task in READ and data.class_names and count in (None, len(data.class_names)):
        fields["id2label"] = dict(enumerate(data.class_names))
        fields["label2id"] = {name: number for number, name in enumerate(data.class_names)}
    return {**fields, **given}


def save_for_transformers(folder: Path, model: torch.nn.Module, request: Request, data: Any) -> None:
    """Writes config and tokenizer beside the weights of a `hf:` model, for `from_pretrained`."""
    name = hub_name(request)
    if name is not None:
        use_cache = getattr(load_config(name), "use_cache", None)
        save_beside(model, folder, use_cache=use_cache, tokenizer=getattr(data, "tokenizer", None))
        directory = directory_of(name) if starting_weights(request) == "DEFAULT" else None
        if directory is not None and (directory / GENERATION).is_file():
            shutil.copyfile(directory / GENERATION, folder / GENERATION)
