"""Optimizers by name, meaning exactly what `torch.optim` means by them unless the workload asks otherwise.

Those that are not in torch.optim as they are belong to techniques, which build them (`techniques/own_optimizer.py`).
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer

from snugfit.device_kinds import kind_of
from snugfit.errors import InputError
from snugfit.machine import torch_release
from snugfit.recipe import Recipe
from snugfit.techniques import OPTIMIZER_NAMES
from snugfit.techniques.base import Setup
from snugfit.techniques.own_optimizer import Groups, own_optimizer, parted_groups
from snugfit.workload import Workload


@dataclasses.dataclass(frozen=True, slots=True)
class OptimizerRow:
    """One optimizer and what it takes."""

    cls: type[Optimizer]
    """Its class; where the state of another one is held in another way, the other one's."""
    settings: tuple[str, ...]
    """Fields of the workload it takes beside lr and weight_decay."""
    fused: bool
    """Whether torch has a kernel that updates all tensors at once and can be masked on the device."""


OF_TORCH: dict[str, type[Optimizer]] = {"adam": Adam, "adamw": AdamW, "sgd": SGD, "adafactor": Adafactor}
"""Classes of torch.optim; an instance of one of them is known by name, and so can be built for one parameter alone."""


def _row(name: str) -> OptimizerRow:
    own = own_optimizer(name)
    cls = (own and own.cls) or OF_TORCH[OPTIMIZER_NAMES[name].holds or name]
    takes = inspect.signature(cls).parameters
    settings = tuple(setting for setting in ("betas", "momentum") if setting in takes)
    return OptimizerRow(cls, settings, own is None and "fused" in takes)


OPTIMIZER_TABLE = {name: _row(name) for name in OPTIMIZER_NAMES}
_SGD_16_BITS_SINCE = (2, 15)
"""First torch known to be right: fused SGD of 2.11 to 2.13 leaves 16-bit weights on cpu as they are, without an error.
Source: pytorch issue 191763, fixed by pull request 192545."""


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that training changes, by name and in order, tied ones once; `InputError` if none."""
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not named:
        raise InputError("the model has no parameter that requires a gradient, so there is nothing to train.")
    return named


def parameter_groups(parameters: Iterable[nn.Parameter], workload: Workload) -> Groups:
    """Returns the optimizer's parameter groups: one, or two with `no_decay`.

    `workload`: its `no_decay` puts parameters of fewer than two dimensions (biases, norms) in a group without decay.
    """
    weights = list(parameters)
    if not workload.no_decay:
        return [{"params": weights}]
    decayed = [weight for weight in weights if weight.dim() >= 2]
    others = [weight for weight in weights if weight.dim() < 2]
    groups: Groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def optimizer_groups(
    model: nn.Module, named: Mapping[str, nn.Parameter], groups: Groups, recipe: Recipe, workload: Workload
) -> Groups:
    """Returns the groups, split where an optimizer treats some parameters differently (embeddings, matrices).

    `named`: name -> what the optimizer has of a parameter.
    """
    own = own_optimizer(recipe.optimizer or workload.optimizer)
    parting = own.parted(model) if own is not None else None
    if parting is None:
        return groups
    chosen, mark, other = parting
    names = {name for name, weight in model.named_parameters() if weight in chosen}
    return parted_groups(groups, ({weight for name, weight in named.items() if name in names}, mark, other))


def make_optimizer(
    recipe: Recipe, workload: Workload, groups: Groups, device: torch.device, *, sparse: bool = False
) -> Optimizer:
    """Builds an optimizer, without state yet.

    `sparse`: whether some gradients are sparse, which fused kernels do not take.
    """
    name = recipe.optimizer or workload.optimizer
    row = OPTIMIZER_TABLE[name]
    given = {"lr": workload.lr, "weight_decay": workload.weight_decay}
    given |= {setting: getattr(workload, setting) for setting in row.settings}
    given = {setting: value for setting, value in given.items() if value is not None}
    own = own_optimizer(name)
    if own is not None:
        return own.make(groups, device, given, _kernels(None, OPTIMIZER_TABLE["adamw"], device, groups))
    kernels = {} if sparse else _kernels(recipe.optimizer_impl, row, device, groups)
    return row.cls(groups, **given, **kernels)  # type: ignore[arg-type]


def choose_kernels(optimizer: Optimizer, setup: Setup) -> None:
    """Sets a recipe's kernels on an optimizer of `make_optimizer`, unless a technique brings its own."""
    name = setup.recipe.optimizer or setup.workload.optimizer
    if own_optimizer(name) is not None:
        return
    row, groups = OPTIMIZER_TABLE[name], optimizer.param_groups
    kernels: dict[str, bool | None] = {"fused": None, "foreach": None}
    kernels |= _kernels(setup.recipe.optimizer_impl, row, device_of_update(setup), groups)
    for group in groups:
        group.update({kernel: choice for kernel, choice in kernels.items() if kernel in group})
    optimizer._step_supports_amp_scaling = bool(kernels["fused"])  # type: ignore[attr-defined]  # as its class would say


def device_of_update(setup: Setup) -> torch.device:
    """Returns where the update runs."""
    return torch.device("cpu") if setup.recipe.offload_optimizer else setup.device


def check_takes_no_closure(optimizer: Optimizer) -> None:
    """Refuses an optimizer whose `step` needs a closure, because it computes the loss several times a step."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        name = type(optimizer).__name__
        raise InputError(
            f"{name} computes the loss several times in one step: its step() needs a closure, and a step of snugfit is one "
            f"forward and backward pass. Use another optimizer here, or train with {name} in your own loop and predict it "
            "with snugfit.estimate(..., step=fn)."
        )


def _kernels(choice: str | None, row: OptimizerRow, device: torch.device, groups: Groups) -> dict[str, bool]:
    missing = _no_fused_kernel(row, device, groups)
    if choice == "fused" and missing:
        raise InputError(f"optimizer_impl='fused': {missing}; use foreach or for-loop.")
    if choice == "fused" or (choice is None and row.fused and not missing):
        return {"fused": True}
    if choice == "for-loop":
        return {"foreach": False}
    return {"foreach": True} if choice == "foreach" else {}


def _no_fused_kernel(row: OptimizerRow, device: torch.device, groups: Groups) -> str | None:
    """Returns why fused kernels cannot be used here, None where they can."""
    if not kind_of(device).fused_optimizers:
        return f"torch has no fused kernels for {device.type}"
    if any(weight.is_complex() for group in groups for weight in group["params"]):
        return "torch's fused kernels take no complex weights"
    half = any(weight.dtype.itemsize == 2 for group in groups for weight in group["params"])
    if row.cls is SGD and device.type == "cpu" and half and torch_release() < _SGD_16_BITS_SINCE:
        return f"the fused SGD of torch {torch.__version__} does not change 16-bit weights on cpu"
    return None
