"""Where a run trains: on a device of this machine, or on a card of the table that is rehearsed on its processor."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from snugfit.device_kinds import CUDA, KINDS, REHEARSE, SIMULATED, default_device, is_there
from snugfit.devices import Device, device_named
from snugfit.errors import InputError, did_you_mean
from snugfit.recipe import Recipe
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.declaration import said

if TYPE_CHECKING:
    import torch

_OWN = tuple(name for name in KINDS if name != SIMULATED)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunDevice:
    """Where a run trains."""

    name: str
    """cpu, cuda, ...; or `rehearse:` and a card's name."""
    card: Device | None = None
    """The card that is rehearsed; None for a device of this machine."""

    @property
    def planned(self) -> str:
        """The name under which memory is predicted and planned there, or `InputError`."""
        if self.card is not None:
            return self.card.name
        planned = KINDS[self.name].planned
        if planned is None:
            known = ", ".join(name for name in _OWN if KINDS[name].planned)
            raise InputError(
                f"memory on {self.name} is not predicted, only on {known}; train without budget and prediction."
            )
        return planned

    def check(self, recipe: Recipe) -> None:
        """Raises `InputError` for a recipe that asks for what only a real card has, if this one is rehearsed."""
        for row in TECHNIQUES if self.card is not None else ():
            for why in said(row.only_on_cards, recipe):
                field = row.fields[0]
                raise InputError(f"{field}={getattr(recipe, field)} cannot be rehearsed: {why}. Rehearse without it.")

    @contextlib.contextmanager
    def entered(self) -> Iterator[torch.device]:
        """Context with the device; tensors on a rehearsed card are gone afterwards."""
        import torch

        if self.card is None:
            yield torch.device(self.name)
            return
        from snugfit.pretend_card.rehearsal import rehearsal

        with rehearsal(self.card) as device:
            yield device


def run_device(name: str) -> RunDevice:
    """Returns where to train; auto is CUDA where there is one.

    `name`: auto, cpu, cuda or another kind that torch has here; or `rehearse:CARD`.
    """
    if name.startswith(REHEARSE):
        return _rehearsed(name)
    name = default_device() if name == "auto" else name
    if name not in _OWN:
        raise InputError(f"device {name!r} is unknown; {did_you_mean(name, ('auto', *_OWN, f'{REHEARSE}CARD'))}")
    if not is_there(name):
        raise InputError(
            f"device {name!r} is not there: torch sees no {name.upper()} device. Use --device cpu, or leave it out; "
            f"--device {REHEARSE}CARD trains on the processor as if a card were there."
        )
    return RunDevice(name=name)


def _rehearsed(name: str) -> RunDevice:
    wanted = name.removeprefix(REHEARSE)
    if wanted in ("", "auto", CUDA):
        raise InputError(
            f"device {name!r} names no card to rehearse. Name one of `snugfit devices`, as in {REHEARSE}rtx-4090."
        )
    card = device_named(wanted)
    if card.memory_bytes is None or card.compute_capability is None:
        raise InputError(
            f"device {name!r} cannot be rehearsed: {card.name} is no CUDA card, and it is CUDA's memory that is rehearsed. "
            "Name another one of `snugfit devices`."
        )
    return RunDevice(name=f"{REHEARSE}{card.name}", card=card)
