"""The state of an update is its optimizer's, also where parameters step one at a time or on the host; here it is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from snugfit.errors import InputError
from snugfit.techniques.own_optimizer import STORAGE
from snugfit.techniques.parameter_update import JointUpdate, Settings

KERNEL_SETTINGS = ("fused", "foreach", "capturable")
"""Settings of torch's optimizers that choose kernels and change no result."""


def load_state(optimizer: Optimizer, parts: Sequence[JointUpdate], state: dict[str, Any]) -> None:
    """Loads a state_dict of this or of the plain optimizer; each part then has its share where it holds it.

    Args:
        optimizer: The optimizer.
        parts: What updates by it.
        state: The state_dict.

    Raises:
        InputError: It is that of other parameters.
    """
    own = optimizer.param_groups
    groups = state["param_groups"]
    _check_storage(own, groups)
    if len(groups) == len(own):  # which kernels run is this recipe's choice, not that of the run that was saved
        kernels = [{name: group[name] for name in KERNEL_SETTINGS if name in group} for group in own]
        groups = [{**given, **kept} for given, kept in zip(groups, kernels, strict=True)]
    hosts = {weight: host for part in parts for weight, host in part.stand_ins().items()}
    try:
        with _in_place(optimizer, hosts):  # state goes to the host straight away: the device may have no room for it
            optimizer.load_state_dict({**state, "param_groups": groups})
    except ValueError as error:
        raise InputError(f"the saved optimizer does not fit this model: {error}") from error
    for part in parts:
        part.reload()


@contextmanager
def _in_place(optimizer: Optimizer, stand_ins: dict[nn.Parameter, nn.Parameter]) -> Iterator[None]:
    _swap(optimizer, stand_ins)
    try:
        yield
    finally:
        _swap(optimizer, {stand_in: weight for weight, stand_in in stand_ins.items()})


def _swap(optimizer: Optimizer, places: dict[nn.Parameter, nn.Parameter]) -> None:
    """Puts parameters in the places of others, with the state of those."""
    for group in optimizer.param_groups:
        group["params"] = [places.get(weight, weight) for weight in group["params"]]
    for old, new in places.items():
        if old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)


def _check_storage(own: Iterable[Settings], saved: Iterable[Settings]) -> None:
    """Raises where a saved state is packed in other bits than an optimizer's."""
    mine, theirs = ({group.get(STORAGE) for group in groups} for groups in (own, saved))
    if mine != theirs:
        names = [", ".join(sorted(name or "full precision" for name in storages)) for storages in (theirs, mine)]
        raise InputError(
            f"the saved optimizer holds its state as {names[0]}, and this recipe as {names[1]}; go on with the optimizer "
            "that was saved, or start the run anew."
        )
