"""A model shared out among GPUs by torch, and this GPU's shares as plain parameters.

Torch's sharded parameters are tensors of a class of their own (DTensor). The update sees what this process holds of each
as a plain parameter on the same memory (`reducer.py`): optimizers, low-bit state, rounding and host copies work as on one
GPU, element by element. What needs all shares, the norm of the gradients and whether they are finite, asks the other
processes (`ranks.py`). Where nothing is shared out, the model stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from snugfit.device_kinds import kind_of
from snugfit.errors import InputError
from snugfit.private_torch import hooks_of
from snugfit.private_torch.collectives import own_part
from snugfit.techniques import each_builds
from snugfit.techniques.base import Setup
from snugfit.techniques.blocks import find_blocks
from snugfit.techniques.init.apply import settle
from snugfit.techniques.shard import numbered
from snugfit.techniques.shard.arrival import Arrival
from snugfit.techniques.shard.first_steps import refusal
from snugfit.techniques.shard.reducer import Reducer, hook_message

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

_DTYPES = {"as-is": None, "fp32": torch.float32, "bf16": torch.bfloat16}


def spread(model: nn.Module, setup: Setup, loss: nn.Module | None) -> Reducer:
    """Shares a model out as the recipe says, so that its parameters become torch's; `InputError` if torch cannot.

    `model`: with every other technique in place, on the device or on the host.
    """
    ranks, recipe = setup.ranks, setup.recipe
    assert ranks is not None
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        raise InputError("this model is shared out already (fully_shard). Give prepare() the plain one.")
    dtype = _DTYPES[recipe.reduce_dtype]
    if ranks.sharers == 1:  # all take the same samples, and have cut the layers
        settle(model, device=setup.device, dtype=None)
        return Reducer(model, ranks, dtype=dtype, at_once=recipe.step_in_backward)
    outside: list[str] = []
    arrive = Arrival(ranks, sent=not each_builds(recipe))
    if recipe.shard == "none":
        arrive(model)
    else:
        check_shareable(model, units(model, recipe.shard_unit))
        offload = OffloadPolicy()
        if recipe.offload_parameters == "all":
            offload = CPUOffloadPolicy(pin_memory=kind_of(setup.device).page_locked)
        for unit in (*units(model, recipe.shard_unit), model):
            arrive(unit)
            _watch_plain(model, unit, outside)
            try:
                fully_shard(
                    unit,
                    mesh=ranks.mesh,
                    mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype),
                    offload_policy=offload,
                    reshard_after_forward=recipe.shard != "gradients",
                )
            except (ValueError, NotImplementedError) as error:  # weights tied across blocks
                raise InputError(refusal(error)) from error
        for module in sharded_modules(model):
            module.set_gradient_divide_factor(1.0)  # losses carry their share of all samples already
            # In 16 bits torch would ask for a reduction that gloo has not.
            module.set_force_sum_reduction_for_comms(True)
    arrive.attributes(model)
    if loss is not None:
        arrive(loss)
        arrive.attributes(loss)
    return Reducer(model, ranks, dtype=dtype, at_once=recipe.step_in_backward, outside=outside)


def check_shareable(model: nn.Module, units: Sequence[nn.Module]) -> None:
    """Raises `InputError` for what torch cannot share out, or would lose without saying so.

    `units`: modules that are collected one at a time, inner ones first.
    """
    unit_of: dict[nn.Module, nn.Module] = {}
    for unit in (*units, model):
        unit_of = dict.fromkeys(unit.modules(), unit) | unit_of
    holders: dict[Tensor, nn.Module] = {}
    names = {module: name for name, module in model.named_modules()}
    for module, unit in unit_of.items():
        for name, weight in module.named_parameters(names[module], recurse=False):
            if holders.setdefault(weight, unit) is not unit:
                raise InputError(refusal(ValueError(f"{name!r} is tied to a weight of another unit that is collected")))
    for name, weight in model.named_parameters():
        before, after = hooks_of(weight)
        if weight.numel() == 0:
            why = f"{name!r} is empty"
        elif weight.dim() == 0:
            why = f"{name!r} has no dimension. Make it torch.ones(1) in place of torch.tensor(1.0)"
        elif weight.is_complex():
            why = f"{name!r} is complex"
        elif not weight.is_meta and not weight.is_contiguous():
            why = f"{name!r} does not lie in the order of its dimensions (channels_last, a transposed weight)"
        elif before or after:
            raise InputError(hook_message(name))
        else:
            continue
        raise InputError(f"torch cannot share out every parameter of this model: {why}. Or use shard='none'.")


def _watch_plain(model: nn.Module, unit: nn.Module, outside: list[str]) -> None:
    """Hooks the plain parameters, which the sharded model no longer has, to notice when one gets a gradient anyway."""
    names = {weight: name for name, weight in model.named_parameters()}
    for weight in unit.parameters():
        if weight.requires_grad and own_part(weight) is weight:
            weight.register_post_accumulate_grad_hook(partial(_used_outside, outside, names[weight]))  # type: ignore[no-untyped-call]


def _used_outside(outside: list[str], name: str, _: Tensor) -> None:
    outside.append(name)


def units(model: nn.Module, unit: str) -> list[nn.Module]:
    """Returns the modules that are collected one at a time, inner ones first; the model itself comes last, unnamed.

    `unit` is `blocks`, or `size:N`.
    """
    least = numbered(unit, "size")
    if least is None:
        return list(find_blocks(model).values())
    found: list[nn.Module] = []
    _large(model, least, found)
    return [module for module in found if module is not model]


def _large(module: nn.Module, least: int, found: list[nn.Module]) -> int:
    """Adds modules with at least that many parameters outside of inner units; returns how many parameters are left over."""
    own = sum(weight.numel() for weight in module.parameters(recurse=False))
    left = own + sum(_large(child, least, found) for child in module.children())
    if left < least or isinstance(module, nn.ModuleList | nn.ModuleDict):  # those have no forward pass to collect for
        return left
    found.append(module)
    return 0


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """Returns the modules whose weights torch collects."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def local(tensor: Tensor) -> Tensor:
    """Returns what this process holds of a tensor, on the same memory."""
    return own_part(tensor).detach()


def let_go_of_weights(model: nn.Module) -> None:
    """Lets go of weights that were collected for a pass which no backward pass follows: it would, and an update is to come.

    Args:
        model: The model, shared out or not.
    """
    for module in sharded_modules(model):
        module.reshard()


def last_backward(model: nn.Module, recipe: Recipe, *, last: bool) -> None:
    """Tells the modules whether this is the last backward of a step: under `reduce_gradients=batch` only it adds up."""
    if recipe.reduce_gradients == "batch" and isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
