"""The batch that a named model is trained on, as shapes: what an estimate needs in place of data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from snugfit.errors import InputError, SequenceTooLongError, did_you_mean
from snugfit.workloads import hf
from snugfit.workloads.model_shapes import input_channels, input_size, token_limit
from snugfit.workloads.tasks import TASKS, task_named

TEXT_TASKS = hf.TASKS
_SEQUENCE = 512
"""Tokens of a sequence where nothing is said and the model takes as many."""


def task_of(spec: str, task: str | None) -> str:
    """Returns the task of a named model.

    Args:
        spec: How the model is named.
        task: What was asked for; None: what the model is for.

    Returns:
        The task's name.

    Raises:
        InputError: There is no such task, or not for this model.
    """
    text = spec.startswith("hf:")
    if task is None:
        return hf.task_of_config(spec.partition(":")[2]) if text else "image-classification"
    if task not in TASKS:
        raise InputError(f"task {task!r} is unknown; {did_you_mean(task, TASKS)}")
    if text and task not in TEXT_TASKS:
        raise InputError(f"task {task!r} is not for hf: models; give {' or '.join(TEXT_TASKS)}.")
    if task in TEXT_TASKS and spec.startswith(("torchvision:", "timm:")):
        raise InputError(f"task {task!r} is for models of text, and {spec!r} takes images. Leave --task out.")
    return task


def batch_for(
    model: torch.nn.Module,
    spec: str,
    task: str,
    *,
    batch_size: int,
    image_size: int | None = None,
    seq_len: int | None = None,
    form: Literal["full", "padded", "packed"] = "full",
) -> tuple[Any, Callable[[Any, Any], torch.Tensor] | None, str | Callable[[Any], Any]]:
    """Returns one batch of a task without memory, and the task's loss.

    Args:
        model: The model; it says what is not given.
        spec: How it was named.
        task: The task's name.
        batch_size: Samples, B.
        image_size: Side of the images, S; None: the model's own.
        seq_len: Tokens of a sequence, T; None: 512, or fewer where the model takes fewer.
        form: Text that fills every sequence; text that is padded, with a mask; or short samples packed, with positions.

    Returns:
        The batch on meta ((images `[B, C, S, S]`, labels `[B]`), or a dict with `input_ids` `[B, T]`, `labels` and, where
        `form` asks for it, `attention_mask` or `position_ids` `[B, T]`), the loss (None where the model returns it), and
        how losses of microbatches combine.

    Raises:
        InputError: The shape is missing, or does not fit the task.
    """
    chosen = task_named(task)
    if task in TEXT_TASKS:
        if image_size is not None:
            raise InputError(f"--image-size has no meaning for {task}; give --seq-len.")
        length = sequence_length(model, seq_len)
        return _tokens(task, batch_size, length, form), chosen.loss, chosen.loss_weight
    if seq_len is not None:
        raise InputError(f"--seq-len has no meaning for {task}; give --image-size.")
    side = image_size or input_size(model, spec)
    if side is None:
        raise InputError(f"nothing says which images {spec!r} takes. Give --image-size N.")
    images = torch.empty(batch_size, input_channels(model), side, side, device="meta")
    return (images, torch.empty(batch_size, dtype=torch.long, device="meta")), chosen.loss, chosen.loss_weight


def sequence_length(model: torch.nn.Module, seq_len: int | None) -> int:
    """Returns how many tokens a sequence has.

    Args:
        model: The model.
        seq_len: What was asked for; None: 512, or fewer where the model takes fewer.

    Returns:
        Tokens.

    Raises:
        SequenceTooLongError: The model takes fewer.
    """
    longest = token_limit(model)
    if seq_len is None:
        return min(_SEQUENCE, longest or _SEQUENCE)
    if longest is not None and seq_len > longest:
        raise SequenceTooLongError(f"--seq-len is {seq_len}; the model takes at most {longest} tokens.")
    return seq_len


def _tokens(task: str, batch_size: int, length: int, form: str) -> dict[str, torch.Tensor]:
    tokens = torch.empty(batch_size, length, dtype=torch.long, device="meta")
    batch = {"input_ids": tokens}
    if form != "full":
        batch["attention_mask" if form == "padded" else "position_ids"] = torch.empty_like(tokens)
    batch["labels"] = torch.empty_like(tokens) if task == hf.CAUSAL_LM else torch.empty_like(tokens[:, 0])
    return batch
