"""Models and data of text: opened, matched, and saved so that transformers loads them. Imports no torch by itself."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.cli.request import Request
from snugfit.errors import InputError, SnugfitError

if TYPE_CHECKING:
    import torch

    from snugfit.workloads.text import TextSplits

TEXT_TASKS = ("text-classification", "causal-lm")


def hub_name(request: Request) -> str | None:
    """Returns what stands after `hf:`, or None for other models."""
    prefix, _, name = request.model.partition(":")
    return name if prefix == "hf" else None


def starting_weights(request: Request) -> str | None:
    """Returns the weights that training starts from.

    Args:
        request: What is to be trained.

    Returns:
        Those that were asked for; else DEFAULT for a `hf:` directory that holds weights; else None.

    Raises:
        InputError: The directory's weights cannot be used.
    """
    from snugfit.workloads.hf_files import holds_weights

    name = hub_name(request)
    if request.settings.weights is not None or name is None:
        return request.settings.weights
    return "DEFAULT" if holds_weights(name) else None


def open_matching_text(request: Request, model: torch.nn.Module, *, download: bool) -> TextSplits:
    """Opens text in the tokens that the model takes.

    Args:
        request: What is to be trained; its task is one of text.
        model: The model without memory, to look at.
        download: Whether `hf:` data may be fetched.

    Returns:
        Training, validation and test part.

    Raises:
        InputError: Data or tokenizer cannot be had, or they do not go with the model.
    """
    from snugfit.workloads.hf_files import directory_of
    from snugfit.workloads.model_shapes import output_classes, sequence_length, vocabulary_size
    from snugfit.workloads.text import TextOptions, open_text
    from snugfit.workloads.text.tokenizer import check_vocabulary, load_tokenizer

    assert request.task is not None
    if request.image_size is not None:
        raise InputError(f"--image-size has no meaning for {request.task}; give --seq-len.")
    if request.strict:
        raise InputError(
            f"--strict has no meaning for {request.task}: only image files are ever skipped. Leave it out."
        )
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
            task=request.task,
            seq_len=sequence_length(model, request.seq_len),
            packing=request.packing,
            text_column=request.text_column,
            label_column=request.label_column,
            prompt_column=request.prompt_column,
            samples=request.samples,
            seed=request.settings.seed,
            download=download,
        ),
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        num_classes=output_classes(model),
        label_ids=getattr(config, "label2id", None) if pretrained else None,
    )


def text_model_args(request: Request, data: TextSplits, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the config fields of a `hf:` model that follow from the data.

    Args:
        request: What is to be trained.
        data: Its labels and tokenizer.
        given: Fields that the user set; they win.

    Returns:
        All fields that are changed; other models take only the user's.
    """
    from snugfit.workloads.text.tokenizer import end_id, pad_id

    if hub_name(request) is None:
        return given
    fields: dict[str, Any] = {}
    if data.tokenizer is not None:
        fields["pad_token_id"] = pad_id(data.tokenizer)
        if starting_weights(request) is None:
            fields["eos_token_id"] = end_id(data.tokenizer)
            fields["bos_token_id"] = data.tokenizer.bos_token_id
    if data.class_names and not {"num_labels", "num_classes"} & set(given):
        fields["id2label"] = dict(enumerate(data.class_names))
        fields["label2id"] = {name: number for number, name in enumerate(data.class_names)}
    return {**fields, **given}


def check_text_model(request: Request, data: TextSplits, given: dict[str, Any]) -> None:
    """Stops where the model cannot take the data; a model of the user's own gets one batch to show that it can.

    Args:
        request: What is to be trained.
        data: The data.
        given: Arguments of the model's constructor.

    Raises:
        InputError: The model cannot take a batch, returns no loss, or has fewer outputs than there are labels.
    """
    import torch

    from snugfit.workloads.models import build_model
    from snugfit.workloads.tasks import classification_logits, task_named

    assert request.task is not None
    outputs = given.get("num_labels", given.get("num_classes"))
    if hub_name(request) is None:
        model = build_model(request.model, model_args=given, num_classes=data.num_classes, task=request.task)
        batch = data.train.batch(range(min(2, len(data.train))))
        if data.num_classes is not None:
            batch["labels"].zero_()  # too few outputs are told below, not by the loss
        try:
            with torch.no_grad():
                output = model.eval()(**batch)
            task_named(request.task).loss_of(output, batch)
            if data.num_classes is not None:
                outputs = classification_logits(output).shape[1]
        except SnugfitError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(
                f"model {request.model!r} cannot take a batch of {data.name} ({', '.join(batch)}): "
                f"{' '.join(str(error).split()).rstrip('.')}. It is called as model(**batch) and must return "
                "its loss, as models of transformers do."
            ) from error
    if data.num_classes is not None and outputs is not None and outputs < data.num_classes:
        raise InputError(
            f"model {request.model!r} tells {outputs} classes apart, and {data.name} has {data.num_classes}. Give the model "
            "more labels, or other data."
        )


def check_packing(request: Request, model: torch.nn.Module) -> None:
    """Stops where a model does not keep samples of a row apart.

    Args:
        request: What is to be trained.
        model: The model, with its weights.

    Raises:
        InputError: It attends across samples.
    """
    from snugfit.workloads.model_shapes import vocabulary_size
    from snugfit.workloads.text.packing import check_borders

    check_borders(model, vocabulary=vocabulary_size(model) or 2, name=request.model)


def save_for_transformers(folder: Path, model: torch.nn.Module, request: Request, data: Any) -> None:
    """Writes config and tokenizer beside the weights of a `hf:` model, so that `from_pretrained` loads the folder.

    Args:
        folder: What becomes part of the run directory.
        model: The trained model.
        request: What was trained.
        data: Its tokenizer is written too.

    Raises:
        OSError: A file cannot be written.
    """
    from snugfit.workloads.hf import load_config
    from snugfit.workloads.hf_files import save_beside

    name = hub_name(request)
    if name is not None:
        use_cache = getattr(load_config(name), "use_cache", None)
        save_beside(model, folder, use_cache=use_cache, tokenizer=getattr(data, "tokenizer", None))
