"""A saved optimizer, loaded into that of a run: its state goes where the parts of the update want it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from snugfit.errors import InputError
from snugfit.techniques.own_optimizer import STORAGE
from snugfit.techniques.parameter_update import JointUpdate, Settings
from snugfit.training.other_model import OtherModelError

_KERNEL_SETTINGS = ("fused", "foreach", "capturable")
"""Settings of torch's optimizers that choose kernels and change no result."""


def load_saved(optimizer: Optimizer, parts: Sequence[JointUpdate], state: dict[str, Any]) -> None:
    """Loads the state_dict of this or another optimizer over the same groups; `OtherModelError` for other parameters.

    `parts`: the parts of the update that the optimizer takes.
    """
    own, groups = optimizer.param_groups, state["param_groups"]
    _check_storage(own, groups)
    if len(groups) == len(own):  # which kernels run is this recipe's choice, not that of the run that was saved
        kernels = [{name: group[name] for name in _KERNEL_SETTINGS if name in group} for group in own]
        groups = [{**given, **kept} for given, kept in zip(groups, kernels, strict=True)]
    hosts = {weight: host for part in parts for weight, host in part.stand_ins().items()}
    _swap(optimizer, hosts)  # state goes to the host straight away: the device may have no room for it
    try:
        optimizer.load_state_dict({**state, "param_groups": groups})
    except ValueError as error:
        raise OtherModelError(f"the saved optimizer does not fit this model: {error}.") from error
    finally:
        _swap(optimizer, {host: weight for weight, host in hosts.items()})
    for part in parts:
        part.reload()


def _swap(optimizer: Optimizer, places: dict[nn.Parameter, nn.Parameter]) -> None:
    """Puts parameters in the places of others in groups and state."""
    for group in optimizer.param_groups:
        group["params"] = [places.get(weight, weight) for weight in group["params"]]
    for old, new in places.items():
        if old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)


def _check_storage(own: Iterable[Settings], saved: Iterable[Settings]) -> None:
    """Raises where a saved state is packed in another number of bits than this optimizer's."""
    mine, theirs = ({group.get(STORAGE) for group in groups} for groups in (own, saved))
    if mine != theirs:
        names = [", ".join(sorted(name or "full precision" for name in storages)) for storages in (theirs, mine)]
        raise InputError(
            f"the saved optimizer holds its state as {names[0]}, and this recipe as {names[1]}; go on with the optimizer "
            "that was saved, or start the run anew."
        )
