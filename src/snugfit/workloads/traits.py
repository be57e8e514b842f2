"""Traits of a model that decide whether microbatches change its result: batch statistics and random masks.

Both are found by structure, never by the model's name; in the model, and in what it and the functions of its step hold
besides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.nn.modules import dropout as torch_dropout

from snugfit.private_torch import BatchNorm, InstanceNorm
from snugfit.techniques.reachable import captured_modules

HALF = (torch.bfloat16, torch.float16)


def model_traits(model: torch.nn.Module, *functions: object) -> dict[str, bool]:
    """Returns what of a training step depends on how its batch is cut, whatever mode the model is in.

    `functions`: what else runs in the step (loss, forward). Modules held by them, or by the model without being parts
    of it, count in the mode that they are in: nobody puts these into training mode.
    `batch_norm`: a layer normalises with statistics of the batch. `dropout`: a layer draws random masks.
    `half_weights`: some trained weights have 16 bits. The keys fit the fields of `Workload`.
    """
    own = set(model.modules())
    modules = [module for module in captured_modules(model, *functions) if module in own or _is_in_training(module)]
    return {
        "batch_norm": any(uses_batch_statistics(module) for module in modules),
        "dropout": any(draws_masks(module) for module in modules),
        "half_weights": any(weight.requires_grad and weight.dtype in HALF for weight in model.parameters()),
    }


def _is_in_training(module: torch.nn.Module) -> bool:
    # Batch norm without running statistics takes those of the batch in evaluation too.
    return module.training or (isinstance(module, BatchNorm) and module.running_mean is None)


def uses_batch_statistics(module: torch.nn.Module) -> bool:
    """Returns whether a layer itself normalises with statistics of the batch."""
    if isinstance(module, BatchNorm):
        return True
    # An instance norm normalises each sample by itself, but its running statistics average over the batch.
    return isinstance(module, InstanceNorm) and module.track_running_stats


def draws_masks(module: torch.nn.Module) -> bool:
    """Returns whether a layer itself draws random masks in training."""
    if isinstance(module, torch_dropout._DropoutNd):
        return bool(module.p > 0)
    if isinstance(module, torch.nn.RNNBase):
        return bool(float(vars(module)["dropout"]) > 0 and module.num_layers > 1)
    if isinstance(module, torch.nn.RReLU):
        return bool(module.lower != module.upper)
    # Stochastic depth and its kin call their probability p or drop_prob.
    named_so = any("drop" in kind.__name__.lower() or "depth" in kind.__name__.lower() for kind in type(module).__mro__)
    if named_so and _is_probability(getattr(module, "p", None)):
        return True
    return any("drop" in name.lower() and _is_probability(value) for name, value in vars(module).items())


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Context in which a model is in evaluation mode; afterwards each module has the mode it had."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _is_probability(value: object) -> bool:
    return isinstance(value, float) and 0 < value <= 1
