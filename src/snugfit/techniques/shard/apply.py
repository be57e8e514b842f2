"""A model shared out among GPUs by torch, and this GPU's shares as plain parameters.

Torch's sharded parameters are tensors of a class of their own (DTensor). The update sees what this process holds of each
as a plain parameter on the same memory: optimizers, low-bit state, rounding and host copies work as on one GPU, element by
element. What needs all shares, the norm of the gradients and whether they are finite, asks the other processes (`ranks.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from snugfit.device_kinds import kind_of
from snugfit.errors import InputError
from snugfit.private_torch.collectives import lying_as, own_part, replicate
from snugfit.techniques import each_builds
from snugfit.techniques.base import Setup
from snugfit.techniques.blocks import find_blocks
from snugfit.techniques.init.apply import settle
from snugfit.techniques.shard import numbered
from snugfit.techniques.shard.arrival import Arrival

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.techniques.shard.ranks import Ranks

_DTYPES = {"as-is": None, "fp32": torch.float32, "bf16": torch.bfloat16}


def spread(model: nn.Module, setup: Setup) -> None:
    """Shares a model out among the processes, as the recipe says; its parameters are torch's sharded ones afterwards.

    Args:
        model: The model, with every other technique in place, on the device or on the host.
        setup: The recipe, and the processes.

    Raises:
        InputError: Torch cannot share this model out.
    """
    assert setup.ranks is not None
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        raise InputError("this model is shared out already (fully_shard). Give prepare() the plain one.")
    scalars = [name for name, weight in model.named_parameters() if weight.dim() == 0]
    if scalars:
        raise InputError(
            f"parameters of this model have no dimension ({', '.join(scalars[:4])}), and torch shares out only others. "
            "Make them torch.ones(1) in place of torch.tensor(1.0), or train with one process."
        )
    recipe, mesh = setup.recipe, setup.ranks.mesh
    if setup.ranks.sharers == 1:  # all take the same samples, and have cut the layers
        settle(model, device=setup.device, dtype=None)
        return
    policies: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(reduce_dtype=_DTYPES[recipe.reduce_dtype]),
    }
    if recipe.offload_parameters == "all":
        policies["offload_policy"] = CPUOffloadPolicy(pin_memory=kind_of(setup.device).page_locked)
    else:
        policies["offload_policy"] = OffloadPolicy()
    arrive = Arrival(setup.ranks, sent=not each_builds(recipe))
    for unit in (*units(model, recipe.shard_unit), model):
        arrive(unit)
        if recipe.shard == "none":
            replicate(unit, **policies)
        else:
            fully_shard(unit, reshard_after_forward=recipe.shard != "gradients", **policies)
    for module in sharded_modules(model):
        module.set_gradient_divide_factor(1.0)  # losses carry their share of all samples already
        module.set_force_sum_reduction_for_comms(True)  # in 16 bits torch would ask for a reduction that gloo has not


def units(model: nn.Module, unit: str) -> list[nn.Module]:
    """Returns the modules that are collected one at a time, inner ones first; the model itself is the last, unnamed.

    Args:
        model: The model.
        unit: `blocks`, or `size:N`.
    """
    least = numbered(unit, "size")
    if least is None:
        return list(find_blocks(model).values())
    found: list[nn.Module] = []
    _large(model, least, found)
    return [module for module in found if module is not model]


def _large(module: nn.Module, least: int, found: list[nn.Module]) -> int:
    """Adds modules whose parameters, without those of units inside, are that many; returns how many are left over."""
    own = sum(weight.numel() for weight in module.parameters(recurse=False))
    left = own + sum(_large(child, least, found) for child in module.children())
    if left < least or isinstance(module, nn.ModuleList | nn.ModuleDict):  # those have no forward pass to collect for
        return left
    found.append(module)
    return 0


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """Returns the modules whose weights torch collects."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def own_shares(named: dict[str, nn.Parameter], ranks: Ranks) -> dict[str, nn.Parameter]:
    """Returns this process's share of each parameter, as a plain parameter whose gradient is its share of the gradient.

    Args:
        named: Name -> torch's sharded parameter.
        ranks: The processes.
    """
    found: dict[str, nn.Parameter] = {}
    for name, weight in named.items():
        share = nn.Parameter(local(weight), requires_grad=weight.requires_grad)
        others = ranks.add_up_layers if name in ranks.seen_in_part else None
        weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            functools.partial(_hand_over, share, others)
        )
        found[name] = share
    return found


def local(tensor: Tensor) -> Tensor:
    """Returns what this process holds of a tensor, on the same memory."""
    return own_part(tensor).detach()


def _hand_over(share: nn.Parameter, others: Callable[[Tensor], None] | None, weight: Tensor) -> None:
    """Gives a share its gradient when the processes have added it up, as autograd would have: adding, then hooks."""
    assert weight.grad is not None
    gradient, weight.grad = local(lying_as(weight.grad, weight)), None
    if others is not None:
        others(gradient)
    if share.grad is None:
        share.grad = gradient
    else:
        share.grad.add_(gradient)
    for hook in (getattr(share, "_post_accumulate_grad_hooks", None) or {}).values():
        hook(share)


def last_backward(model: nn.Module, recipe: Recipe, *, last: bool) -> None:
    """Tells a model's modules whether the next backward pass is the last one of a step.

    Args:
        model: The model, shared out.
        recipe: Its `reduce_gradients` says whether only that one adds gradients up among the processes.
        last: Whether it is.
    """
    if recipe.reduce_gradients == "batch" and isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
