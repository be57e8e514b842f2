"""What a step and an epoch cost on cards whose prices the user gives, and which card that fits is the cheapest.

Prices are never ours: they differ from seller to seller and from day to day. A cost is the price of an hour, of whatever
currency, times the predicted seconds; it is no better than these.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from snugfit.devices import device_named
from snugfit.errors import InputError, option

if TYPE_CHECKING:
    from snugfit.simulator.prediction import DeviceFit

HOUR_SECONDS = 3600


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What training costs on a card."""

    name: str
    """The card's name."""
    price_per_hour: float
    """What the user says it costs."""
    fits: bool
    """Whether the run fits."""
    step_seconds: float | None
    """Predicted seconds of a steady step; None where no speed is known."""
    cost_per_step: float | None
    """In the unit of the price; None where the run does not fit, or no speed is known."""
    cost_per_epoch: float | None
    """The same of an epoch, evaluation left out; None where nobody said how many samples it has."""


def read_prices(given: Sequence[str]) -> dict[str, float]:
    """Reads texts such as `rtx-4090=0.35` (card, price of an hour)."""
    found: dict[str, float] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise InputError(
                f"{option('price')} {text!r} is not understood; give CARD=PRICE an hour, such as rtx-4090=0.35."
            )
        try:
            price = float(value)
        except ValueError:
            price = math.nan
        if not (math.isfinite(price) and price >= 0):
            raise InputError(
                f"{option('price')} {text!r}: {value.strip()!r} is no price; give a number without a currency, 0 or more, "
                f"such as {name.strip()}=0.35."
            )
        card = device_named(name).name
        if found.setdefault(card, price) != price:
            raise InputError(
                f"{option('price')} gives {card} twice, at {found[card]:g} and {price:g}; give one of the two."
            )
    return found


def check_priced(prices: Mapping[str, float], cards: Sequence[str]) -> None:
    """Raises `InputError` for prices of cards that nothing is predicted for."""
    others = sorted(prices.keys() - {*cards})
    if others:
        asked = cards[0] if len(cards) == 1 else "all"
        raise InputError(
            f"{option('price')} names {', '.join(others)}, and the estimate is of {option('device')} {asked}. Leave "
            f"{option('device')} out, which means all cards of the table, or price {asked if asked != 'all' else 'those'}."
        )


def costs_of(
    devices: Sequence[DeviceFit], prices: Mapping[str, float], *, batch_size: int | None, samples: int | None
) -> tuple[Cost, ...]:
    """Returns what a step of `batch_size` and an epoch of `samples` cost on each priced card, cheapest first.

    One row for each card with a price; those that do not fit, or whose speed is not known, stand last.
    """
    steps = None if samples is None or batch_size is None else -(-samples // batch_size)
    found = []
    for device in devices:
        if device.name in prices:
            price = prices[device.name]
            known = device.fits and device.step_seconds is not None
            step = price * (device.step_seconds or 0.0) / HOUR_SECONDS if known else None
            found.append(
                Cost(
                    name=device.name,
                    price_per_hour=price,
                    fits=device.fits,
                    step_seconds=device.step_seconds,
                    cost_per_step=step,
                    cost_per_epoch=None if step is None or steps is None else step * steps,
                )
            )
    return tuple(
        sorted(found, key=lambda one: (one.cost_per_step is None, one.cost_per_step or 0.0, one.step_seconds or 0))
    )
