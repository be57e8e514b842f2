"""The batch that a named model is trained on, as shapes: what an estimate needs in place of data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from snugfit.errors import InputError, did_you_mean
from snugfit.workloads import hf
from snugfit.workloads.model_shapes import input_channels, input_size
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
    if task not in (*TASKS, *TEXT_TASKS):
        raise InputError(f"task {task!r} is unknown; {did_you_mean(task, (*TASKS, *TEXT_TASKS))}")
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
) -> tuple[Any, Callable[[Any, Any], torch.Tensor] | None, str]:
    """Returns one batch of a task without memory, and the task's loss.

    Args:
        model: The model; it says what is not given.
        spec: How it was named.
        task: The task's name.
        batch_size: Samples, B.
        image_size: Side of the images, S; None: the model's own.
        seq_len: Tokens of a sequence, T; None: 512, or fewer where the model takes fewer.

    Returns:
        The batch on meta ((images `[B, C, S, S]`, labels `[B]`), or a dict with `input_ids` `[B, T]` and `labels`), the loss
        (None where the model returns it), and how losses of microbatches combine.

    Raises:
        InputError: The shape is missing, or does not fit the task.
    """
    if task in TEXT_TASKS:
        if image_size is not None:
            raise InputError(f"--image-size has no meaning for {task}; give --seq-len.")
        return _tokens(model, task, batch_size, seq_len), None, "tokens" if task == hf.CAUSAL_LM else "samples"
    if seq_len is not None:
        raise InputError(f"--seq-len has no meaning for {task}; give --image-size.")
    side = image_size or input_size(model, spec)
    if side is None:
        raise InputError(f"nothing says which images {spec!r} takes. Give --image-size N.")
    chosen = task_named(task)
    images = torch.empty(batch_size, input_channels(model), side, side, device="meta")
    return (images, torch.empty(batch_size, dtype=torch.long, device="meta")), chosen.loss, chosen.loss_weight


def _tokens(model: torch.nn.Module, task: str, batch_size: int, seq_len: int | None) -> dict[str, torch.Tensor]:
    config = getattr(model, "config", None)
    longest = getattr(config, "max_position_embeddings", None)
    longest = longest if isinstance(longest, int) and longest > 0 else None
    if seq_len is None:
        seq_len = min(_SEQUENCE, longest or _SEQUENCE)
    if longest is not None and seq_len > longest:
        raise InputError(f"--seq-len is {seq_len}; the model takes at most {longest} tokens.")
    tokens = torch.empty(batch_size, seq_len, dtype=torch.long, device="meta")
    labels = torch.empty_like(tokens) if task == hf.CAUSAL_LM else torch.empty_like(tokens[:, 0])
    return {"input_ids": tokens, "labels": labels}
