"""Evaluation of a measured run: the loop's own code, on batches with memory of their own, as a loader makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from snugfit.techniques.microbatch.apply import batch_length, map_tensors, split_batch
from snugfit.training.evaluation import evaluate, evaluated_at_once
from snugfit.workloads.tasks import task_of_loss


def evaluate_on(trainer: Any, batch: Any, arguments: Mapping[str, Any]) -> None:
    """Evaluates the samples of a batch of training, as many at once as the loop does.

    Args:
        trainer: From `snugfit.prepare`.
        batch: The batch.
        arguments: The other arguments of `snugfit.prepare`: `loss` and `loss_weight` are looked at.
    """
    pieces = split_batch(batch, evaluated_at_once(trainer.recipe, batch_length(batch)))
    task = task_of_loss(arguments.get("loss"), arguments.get("loss_weight", "samples"))
    evaluate(trainer, (map_tensors(piece, torch.Tensor.clone) for piece in pieces), task)
