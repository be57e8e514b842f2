"""The state of an update, saved and loaded as one ordinary optimizer's, however many optimizers there are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from snugfit.errors import InputError
from snugfit.techniques.offload_optimizer.apply import HostUpdate
from snugfit.techniques.own_optimizer import STORAGE
from snugfit.techniques.parameter_update import ParameterUpdate, Settings

KERNEL_SETTINGS = ("fused", "foreach", "capturable")
"""Settings of torch's optimizers that choose kernels and change no result."""


def load_joint(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Loads a state_dict into the one optimizer of all parameters.

    Args:
        optimizer: The optimizer.
        state: From this or from the plain optimizer.

    Raises:
        InputError: It is that of other parameters.
    """
    own = optimizer.param_groups
    groups = state["param_groups"]
    _check_storage(own, groups)
    if len(groups) == len(own):  # which kernels run is this recipe's choice, not that of the run that was saved
        kernels = [{name: group[name] for name in KERNEL_SETTINGS if name in group} for group in own]
        groups = [{**given, **kept} for given, kept in zip(groups, kernels, strict=True)]
    try:
        optimizer.load_state_dict({**state, "param_groups": groups})
    except ValueError as error:
        raise InputError(f"the saved optimizer does not fit this model: {error}") from error


def state_of_parts(updates: list[ParameterUpdate], ordinary_groups: list[Settings]) -> dict[str, Any]:
    """Returns the state_dict that one ordinary optimizer over the same groups would have.

    Args:
        updates: One for each parameter, in the order of the groups.
        ordinary_groups: The groups.
    """
    state, groups, at = {}, [], 0
    for group in ordinary_groups:
        mine = updates[at : at + len(group["params"])]
        for position, update in enumerate(mine, start=at):
            if update.state():
                state[position] = update.state()
        settings = {name: value for name, value in mine[0].group.items() if name != "params"}
        groups.append({**settings, "params": list(range(at, at + len(mine)))})
        at += len(mine)
    return {"state": state, "param_groups": groups}


def load_parts(updates: list[ParameterUpdate], state: dict[str, Any]) -> None:
    """Loads the state_dict of one ordinary optimizer into an optimizer for each parameter.

    Args:
        updates: One for each parameter, in the order of the groups.
        state: The state_dict.

    Raises:
        InputError: It is that of other parameters.
    """
    _check_storage([update.group for update in updates], state["param_groups"])
    groups = {position: group for group in state["param_groups"] for position in group["params"]}
    if len(groups) != len(updates):
        raise InputError(
            f"the saved optimizer does not fit this model: it has {len(groups)} parameters, the model {len(updates)}."
        )
    for position, update in enumerate(updates):
        update.load_state(state["state"].get(position, {}))
        update.group.update(
            {name: value for name, value in groups[position].items() if name not in ("params", *KERNEL_SETTINGS)}
        )
        if isinstance(update, HostUpdate):
            update.reload()


def _check_storage(own: Iterable[Settings], saved: Iterable[Settings]) -> None:
    """Raises where a saved state is packed in other bits than an optimizer's."""
    mine, theirs = ({group.get(STORAGE) for group in groups} for groups in (own, saved))
    if mine != theirs:
        names = [", ".join(sorted(name or "full precision" for name in storages)) for storages in (theirs, mine)]
        raise InputError(
            f"the saved optimizer holds its state as {names[0]}, and this recipe as {names[1]}; go on with the optimizer "
            "that was saved, or start the run anew."
        )
