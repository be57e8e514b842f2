"""What several processes hold of a model together: each one's share of a tensor, and the whole of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from snugfit.techniques.shard.apply import local
from snugfit.training.other_model import check_shapes

if TYPE_CHECKING:
    from snugfit.training.trainer import Trainer


def layouts(trainer: Trainer) -> tuple[dict[str, Any], list[Tensor]]:
    """Returns how a trainer's state is laid out: tensors of the model by name, the optimizer's parameters by number.

    The model's `state_dict`; and parameters, of several processes torch's sharded ones.
    """
    names = {share: name for name, share in trainer.update.gradients.named.items()}
    held = trainer.model.state_dict()  # before the parameters are looked at: it lets go of what was collected of them
    spread = dict(trainer.model.named_parameters())
    weights = (weight for group in trainer.update.optimizer.param_groups for weight in group["params"])
    return held, [spread.get(names.get(weight, ""), weight) for weight in weights]


def share_of_whole(whole: Tensor, layout: Tensor) -> Tensor:
    """Returns this process's share of a tensor that it holds whole.

    `layout`: a tensor that lies as it is to lie; a plain one: all of it here.
    """
    if not isinstance(layout, DTensor):
        return whole
    part, mesh, coordinate = whole, layout.device_mesh, layout.device_mesh.get_coordinate()
    assert coordinate is not None
    # The last dimension of the mesh first: what layers are cut into is shared out.
    for number in reversed(range(mesh.ndim)):
        cut = getattr(layout.placements[number], "dim", None)
        if cut is not None:
            size = -(-part.shape[cut] // mesh.size(number))
            start = min(size * coordinate[number], part.shape[cut])
            part = part.narrow(cut, start, min(size, part.shape[cut] - start))
    return part.to(local(layout).device).contiguous()


def put_share(layout: Tensor, whole: Tensor) -> None:
    """Writes this process's part of a whole tensor into its place."""
    local(layout).copy_(share_of_whole(whole, layout))


def spread_as(share: Tensor, layout: Tensor, mesh: DeviceMesh | None = None) -> Tensor:
    """Returns this process's share as one of torch's sharded tensors.

    `layout`: a tensor that lies so; a plain one: the share is all of it.
    `mesh`: the mesh; None: the layout's.
    """
    if not isinstance(layout, DTensor):
        return share
    return DTensor.from_local(
        share,
        mesh or layout.device_mesh,
        layout.placements,
        run_check=False,
        shape=layout.shape,
        stride=layout.stride(),
    )


def load_shares(model: nn.Module, shares: Mapping[str, Any]) -> None:
    """Loads this process's share of everything in the model's `state_dict`; `OtherModelError` for another model's."""
    own = model.state_dict()
    check_shapes(*({name: _shape(value) for name, value in held.items()} for held in (own, shares)))
    with torch.no_grad():
        for name, value in own.items():
            if isinstance(value, Tensor):
                local(value).copy_(shares[name])


def _shape(value: Any) -> Any:
    return local(value).shape if isinstance(value, Tensor) else None


@torch.no_grad()
def whole_of(value: Any) -> Any:
    """Returns the whole of a tensor that processes share, on the device; anything else as it is. All must call this."""
    if not isinstance(value, DTensor):
        return value
    return spread_as(local(value).detach(), value.detach()).full_tensor()  # type: ignore[attr-defined]
