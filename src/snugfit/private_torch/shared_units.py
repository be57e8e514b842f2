"""What `fully_shard` does with the units of a model, watched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Watch(Protocol):
    """Told of what `fully_shard` does with the units of a model."""

    def gradients(self, weights: list[Any], here: list[bool]) -> None:
        """Called before a unit's summed gradients arrive; `here`: whether this process has one, by parameter."""

    def before(self, number: int, way: str) -> None:
        """Called before a unit, by number, asks the other processes for something.

        `way`: "collects the weights", "adds up the gradients"; "misses the backward pass", where its gradients have
        come without it being collected for them; or "has other weights", where somebody has put some in their place.
        """

    def whole(self, weights: list[tuple[Any, Any]], *, there: bool) -> None:
        """Called when a unit was collected (`there`) and before it is freed, with each share and its whole."""


def watch_shared_out(model: torch.nn.Module, watch: Watch) -> None:
    """Makes `fully_shard` send zeros for parameters that have a gradient only in other processes.

    Torch sends only what is there, and processes with other gradients than the others then wait in vain, or mix them
    up. (`set_reduce_scatter_unused_params`, of torch 2.14, does not tell which they were.) A unit without any gradient
    sends none: it is used once more, and they come then.
    """
    from torch.distributed.fsdp import FSDPModule

    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for number, module in enumerate(modules):
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)  # a single group, by another name, in the first versions
        for group in [state._fsdp_param_group] if groups is None else groups:
            if group is not None:
                # On the instance, where `fully_shard` finds them before those of the class: other models' units stay as
                # they are.
                vars(group).update(
                    post_backward=functools.partial(_filled, group, group.post_backward, watch, number),
                    unshard=functools.partial(_collected, group, group.unshard, watch, number),
                    _to_unsharded=functools.partial(_came, group, group._to_unsharded, watch),
                    _to_sharded=functools.partial(_goes, group, group._to_sharded, watch),
                )


def _collected(group: Any, unshard: Callable[..., None], watch: Watch, number: int, *args: Any) -> None:
    for param in group.fsdp_params:
        # Weights that are lent for a call (torch.func.functional_call) lie in the module's own table.
        info = param._module_info
        weight = info.module._parameters.get(info.param_name)
        if weight is not param.sharded_param and weight is not getattr(param, "_unsharded_param", None):
            watch.before(number, "has other weights")
    watch.before(number, "collects the weights")
    unshard(*args)


def _came(group: Any, to_unsharded: Callable[[], None], watch: Watch) -> None:
    to_unsharded()
    watch.whole([(param.sharded_param, param._unsharded_param) for param in group.fsdp_params], there=True)


def _goes(group: Any, to_sharded: Callable[[], None], watch: Watch) -> None:
    if group.is_unsharded:
        watch.whole([(param.sharded_param, param._unsharded_param) for param in group.fsdp_params], there=False)
    to_sharded()


def _filled(group: Any, post_backward: Callable[..., None], watch: Watch, number: int, *args: Any) -> None:
    params = [param for param in group.fsdp_params if group.reduce_grads and hasattr(param, "_unsharded_param")]
    trained = [param for param in params if param._unsharded_param.requires_grad]
    there = [
        param._unsharded_param.grad is not None or param.unsharded_accumulated_grad is not None for param in trained
    ]
    if any(there):
        # Torch has not seen this unit's backward pass begin, in which it collects the weights once more.
        unseen = group._training_state.name != "PRE_BACKWARD"
        watch.before(number, "misses the backward pass" if unseen else "adds up the gradients")
        for param, here in zip(trained, there, strict=True):
            if not here:
                whole = param._unsharded_param
                whole.grad = torch.zeros_like(whole, dtype=getattr(whole, "grad_dtype", None))
        watch.gradients([param.sharded_param for param in trained], there)
    post_backward(*args)


def forget_shares(model: torch.nn.Module) -> None:
    """Makes torch forget that it sharded a model whose modules are plain again."""
    from torch.distributed._composable_state import _module_state_mapping

    for module in model.modules():
        _module_state_mapping.pop(module, None)


@functools.cache
def gathering() -> tuple[Any, ...]:
    """Returns the operators of `fully_shard` that put collected parameters where the model finds them."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives  # defines them

    assert _fsdp_collectives is not None
    return (torch.ops.fsdp.split_with_sizes_copy.default,)
